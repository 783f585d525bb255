"""The recipe of a profile: what is counted in a corpus, and how much of each user counts."""

from typing import Literal

from pydantic import Field, model_validator

from rayprivacy.core.config import Config
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.ledger.settings import PrivacyConfig
from rayprivacy.models.settings import ModelConfig
from rayprivacy.release.thresholded import MOST_KEYS
from rayprivacy.runs.method import Card, Method
from rayprivacy.runs.recipe import Recipe, Resources


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
        label_values: values of each of corpus.labels that one user counts for, at most.
        delta_share: the part of privacy.delta that the threshold of words and labels takes.
    """

    keywords: int = Field(default=16, ge=0)
    label_values: int = Field(default=4, ge=1)
    delta_share: float = Field(default=0.01, gt=0, lt=1)


class ProfileResources(Resources):
    """The `resources` block.

    Attributes:
        parts: part files of the corpus, each of which is one piece of work.
    """

    parts: int = Field(default=4, ge=1)


class ProfileRecipe(Recipe):
    """A resolved recipe of a profile."""

    method: Literal["profile"] = "profile"
    corpus: ProfileCorpus = ProfileCorpus()
    privacy: ProfilePrivacy = ProfilePrivacy()
    model: ProfileModel = ProfileModel()
    profile: ProfileConfig = ProfileConfig()
    resources: ProfileResources = ProfileResources()

    @model_validator(mode="after")
    def _can_count(self) -> "ProfileRecipe":
        if self.keys > MOST_KEYS:
            raise ValueError(
                f"profile.keywords and profile.label_values let a user count for {self.keys:,} words and labels, and"
                f" {MOST_KEYS:,} are taken: lower them"
            )
        return self

    @property
    def keys(self) -> int:
        """Words and values of labels that one user counts for, at most."""
        return self.profile.keywords + self.profile.label_values * len(self.corpus.labels)


PROFILE = "profile.json"
CARD = Card(
    citation="a profile of the corpus",
    sentence="users were counted with noise: by how much they wrote, how long their texts are, in which script, with"
    " which words and labels.",
    private=(("corpus", "the raw text"), ("users", "one id each"), ("sums", "bounded by user")),
    released=(("counts", "with noise"), ("profile", "what they say"), ("report", "this page")),
    texts="",
    has_model=False,
    file=PROFILE,
)
METHOD = Method(
    recipe=ProfileRecipe,
    card=CARD,
    plan="rayprivacy.methods.profile.plan:plan_run",
    run="rayprivacy.methods.profile.method:run",
    reading="rayprivacy.methods.profile.method:reading_of",
    check="rayprivacy.methods.profile.counting:check_inputs",
)
