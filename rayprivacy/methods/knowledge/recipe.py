"""The recipe of knowledge: what is asked of users' texts, the account with a part of delta for thresholds, the card."""

from typing import Any, Literal

from pydantic import Field, model_validator

from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.settings import CorpusConfig, check_unit
from rayprivacy.knowledge.settings import KnowledgeConfig
from rayprivacy.ledger.settings import PrivacyConfig
from rayprivacy.runs.method import Card, Method
from rayprivacy.runs.recipe import FREE, Recipe, Resources

FACTS = "facts.parquet"
_WRITTEN: dict[str, Any] = {"model": True, "attributes": {"__all__": {"sentences": True}}}  # from released facts alone


class KnowledgeCorpus(CorpusConfig):
    """The `corpus` block: nobody is held out unless that is asked for, since every user's vote counts."""

    holdout: float = Field(0.0, ge=0.0, le=0.9)


class KnowledgePrivacy(PrivacyConfig):
    """The `privacy` block: users; half of delta is kept for thresholds."""

    unit: Literal[PrivacyUnit.USER] = PrivacyUnit.USER
    composition: Literal["gdp", "zcdp", "rdp", "pld"] = "gdp"


class KnowledgeResources(Resources):
    """The `resources` block.

    Attributes:
        parts: part files of the corpus, each of which is one piece of work.
    """

    parts: int = Field(default=4, ge=1)


class KnowledgeRecipe(Recipe):
    """A resolved recipe of knowledge."""

    method: Literal["knowledge"] = "knowledge"
    corpus: KnowledgeCorpus = KnowledgeCorpus()
    privacy: KnowledgePrivacy = KnowledgePrivacy()
    knowledge: KnowledgeConfig
    resources: KnowledgeResources = KnowledgeResources()

    @model_validator(mode="after")
    def _can_run(self) -> "KnowledgeRecipe":
        check_unit(self.corpus, self.privacy.unit, self.resources.parts)
        return self

    @property
    def release_id(self) -> str:
        """Name of the release: what is written and learnt from released facts is no part of it."""
        return self._named({**FREE, "model": True, "knowledge": _WRITTEN})


CARD = Card(
    citation="votes above a threshold",
    sentence="each user's texts were read alone; names, and answers about them, were counted with noise, once for each"
    " user, and those with enough users were released.",
    private=(("corpus", "the raw text"), ("users", "read one by one"), ("votes", "counted")),
    released=(
        ("names", "many users'"),
        ("facts", "with noisy counts"),
        ("passages", "written from facts"),
        ("questions", "with answers"),
        ("report", "this page"),
    ),
    text="Passages that state what many users wrote. They were made by",
    use="To look up what many users state: each fact is in `facts.parquet`, with its noisy number of users."
    " It need not be true. What few users state is not there, and nothing is said of a single person.",
    beside=(FACTS,),
    has_model=False,
)
METHOD = Method(
    recipe=KnowledgeRecipe,
    card=CARD,
    plan="rayprivacy.methods.knowledge.plan:plan_run",
    run="rayprivacy.methods.knowledge.method:run",
    reading="rayprivacy.methods.knowledge.method:reading_of",
    trial="rayprivacy.methods.knowledge.method:try_base",
)
