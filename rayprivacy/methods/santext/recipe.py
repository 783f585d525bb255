"""The recipe of SanText: the account of another kind, and the block `sanitize`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from rayprivacy.core.config import Config, PathKind
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.settings import WHOLE, CorpusConfig, check_unit
from rayprivacy.ledger.settings import PrivacyConfig
from rayprivacy.models.settings import ModelConfig
from rayprivacy.runs.method import Card, Method
from rayprivacy.runs.recipe import FREE, MeasureConfig, Recipe, Resources
from rayprivacy.sanitize.labels import Labels
from rayprivacy.sanitize.settings import SanitizeConfig

READER_BATCH, READER_WORDS = 32, 64  # texts of a step of the public model, and words of a text at most


class SanTextCorpus(CorpusConfig):
    """The `corpus` block: every document is sanitised, so none is held out unless that is asked for.

    Texts are cut by `sanitize.max_tokens` words and never by characters, since how many words leave is no secret.
    """

    max_chars: int = Field(WHOLE, ge=1)
    max_records_per_user: int | None = Field(8, ge=1)
    holdout: float = Field(0.0, ge=0.0, le=0.9)


class SanTextPrivacy(PrivacyConfig):
    """The `privacy` block: a metric-local account, in which the epsilons of words add up; delta is not used.

    Attributes:
        epsilon: cap of all words of a user together, or of a record where that is the unit.
    """

    composition: Literal["metric"] = "metric"


class SanTextModel(ModelConfig):
    """The `model` block: a public model for attacks, and for vectors if `sanitize.vectors` says so; always float32."""

    dtype: Literal["float32"] = "float32"


class SanTextMeasure(MeasureConfig):
    """The `evaluation` block.

    Attributes:
        attacked: words of private documents whose originals are guessed from the sanitised text, about; 0 for none.
    """

    attacked: int = Field(default=0, ge=0)


class PretrainingConfig(Config):
    """The `pretraining` block: a public model that learns to read sanitised text, from public text alone.

    Attributes:
        text: a public Parquet file with the column `text`, or lines of text.
        steps: number of AdamW's steps.
    """

    text: Annotated[str, PathKind.PUBLIC]
    steps: int = Field(default=200, ge=1)


class SanTextResources(Resources):
    """The `resources` block.

    Attributes:
        parts: part files of the corpus, each of which is one piece of work.
    """

    parts: int = Field(default=4, ge=1)


class SanTextRecipe(Recipe):
    """A resolved recipe of SanText (Yue et al., 2021)."""

    needs_users: ClassVar[bool] = False
    method: Literal["santext"] = "santext"
    corpus: SanTextCorpus = SanTextCorpus()
    privacy: SanTextPrivacy = SanTextPrivacy(epsilon=1000.0)
    model: SanTextModel = SanTextModel()
    sanitize: SanitizeConfig = SanitizeConfig()
    pretraining: PretrainingConfig | None = None
    evaluation: SanTextMeasure = SanTextMeasure()
    resources: SanTextResources = SanTextResources()

    @model_validator(mode="after")
    def _can_run(self) -> "SanTextRecipe":
        if self.privacy.unit is PrivacyUnit.PHRASE:
            raise ValueError("privacy.unit is 'phrase', and SanText sanitises every word: choose user or record")
        if self.corpus.user is None and self.privacy.unit is not PrivacyUnit.RECORD:
            raise ValueError("corpus.user is null, so every row is its own author's: set privacy.unit to record")
        check_unit(self.corpus, self.privacy.unit, self.resources.parts)
        if self.audit:
            raise ValueError("'audit' asks who took part, which a local method does not hide: use evaluation.attacked")
        Labels(self.sanitize.labels, self.corpus.labels)
        return self

    @property
    def release_id(self) -> str:
        """Name of the release: what is trained on public text afterwards is no part of it."""
        return self._named({**FREE, "pretraining": True})

    @property
    def records(self) -> int:
        """Records of one unit of privacy, at most."""
        return self.corpus.max_records_per_user or 1


CARD = Card(
    citation="SanText (Yue et al., ACL Findings 2021)",
    sentence="every word was replaced by a draw from a public table, in which near words are likelier.",
    private=(("corpus", "the raw text"), ("values", "made up anew"), ("words", "replaced by coins")),
    released=(("sanitised text", "word for word"), ("report", "this page")),
    text="Text whose words were replaced by random ones. It was made by",
    texts="sanitized.parquet",
    has_model=False,
)
METHOD = Method(
    recipe=SanTextRecipe,
    card=CARD,
    plan="rayprivacy.methods.santext.plan:plan_run",
    run="rayprivacy.methods.santext.method:run",
    reading="rayprivacy.methods.santext.method:reading_of",
    check="rayprivacy.methods.santext.method:check_inputs",
    trial="rayprivacy.methods.santext.method:try_base",
)
