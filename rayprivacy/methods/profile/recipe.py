"""The recipe of a profile: what is counted in a corpus, and how much of each user counts."""

from typing import Literal

from pydantic import Field

from rayprivacy.core.config import Config
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.ledger.settings import PrivacyConfig
from rayprivacy.models.settings import ModelConfig
from rayprivacy.runs.method import Card, Method
from rayprivacy.runs.recipe import Recipe

LABEL_VALUES = 4  # of each label, that one user counts for, at most


class ProfileCorpus(CorpusConfig):
    """The `corpus` block: all users are counted, so none is held out, and bounds are wide."""

    max_records_per_user: int | None = Field(1000, ge=1)
    max_chars: int = Field(10_000, ge=1)
    holdout: float = Field(0.0, ge=0.0, le=0.9)


class ProfilePrivacy(PrivacyConfig):
    """The `privacy` block: users, and rules that know Gaussian noise with a threshold."""

    unit: Literal[PrivacyUnit.USER] = PrivacyUnit.USER
    composition: Literal["gdp", "zcdp", "rdp", "pld"] = "gdp"


class ProfileModel(ModelConfig):
    """The `model` block: the public base, of which only the tokenizer is used."""

    dtype: Literal["float32"] = "float32"


class ProfileConfig(Config):
    """The `profile` block.

    Attributes:
        keywords: words that one user counts for, at most: those of most of their texts; 0 leaves words out.
    """

    keywords: int = Field(default=16, ge=0, le=1000)


class ProfileRecipe(Recipe):
    """A resolved recipe of a profile."""

    method: Literal["profile"] = "profile"
    corpus: ProfileCorpus = ProfileCorpus()
    privacy: ProfilePrivacy = ProfilePrivacy()
    model: ProfileModel = ProfileModel()
    profile: ProfileConfig = ProfileConfig()

    @property
    def keys(self) -> int:
        """Words and values of labels that one user counts for, at most."""
        return self.profile.keywords + LABEL_VALUES * len(self.corpus.labels)


PROFILE = "profile.json"
CARD = Card(
    citation="a profile of the corpus",
    sentence="users were counted with noise: by how much they wrote, how long their texts are, in which script, with"
    " which words and labels.",
    private=(("corpus", "the raw text"), ("users", "one id each"), ("sums", "bounded by user")),
    released=(("counts", "with noise"), ("profile", "what they say"), ("report", "this page")),
    texts="",
    has_model=False,
    beside=(PROFILE,),
)
METHOD = Method(
    recipe=ProfileRecipe,
    card=CARD,
    plan="rayprivacy.methods.profile.plan:plan_run",
    run="rayprivacy.methods.profile.method:run",
    reading="rayprivacy.methods.profile.method:reading_of",
    check="rayprivacy.methods.profile.counting:check_inputs",
)
