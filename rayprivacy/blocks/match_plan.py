"""The plan of a recipe's `match` block: its keys, the charge of the votes, and how many texts are written for it.

Imports neither torch nor Ray.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any

from pydantic import Field, model_validator

from rayprivacy.accounting.accountant import epsilon
from rayprivacy.blocks.writing_plan import Writing
from rayprivacy.core import config, errors, units
from rayprivacy.core.files import Json
from rayprivacy.models.sources import sentence_weights
from rayprivacy.release.histogram import NOISE, Margins, small_vote_noise
from rayprivacy.runs.assumptions import DISCRETE_NOISE, Placed, Where, at
from rayprivacy.runs.plan import SENTENCE, SENTENCES_CALL, Block, Effort, Stage, Work
from rayprivacy.runs.profiled import WORDS, Profile, read_profile
from rayprivacy.runs.recipe import FREE, Recipe

MATCH = "topics and lengths"
PARTS_VOTED, TEXTS_OPENED = "parts_voted", "texts_opened"
MOST_WORDS = 100  # that are voted for: the commonest
_OPENER = 32  # tokens of the first words of a text with a released word behind them, at most
_EMBEDDINGS = 2  # of each candidate: when topics are made, and when it is cut
_OPENED = 0.25  # of the candidates, for estimates of time: how many are written besides for words that they lack


class MatchConfig(config.Config):
    """How released text is matched with the corpus, for a small charge.

    Attributes:
        candidates: texts that the released model writes for each one that is kept; which are kept is free.
        topics: clusters of these texts by meaning, of which each private text votes for the nearest.
        words: `profile.json` of a finished profile, whose released words are voted for as well, and written where the
            candidates lack them; None leaves them out.
        noise_multiplier: sigma of the votes by topic and length, noise std / L2 sensitivity; None lets a recipe
            take 5, or more where its epsilon is below 3 (see `release.histogram.small_vote_noise`).
    """

    candidates: float = Field(default=3.0, ge=1, le=100)
    topics: int = Field(default=24, ge=1, le=500)
    words: Annotated[str | None, config.PathKind.PUBLIC] = Field(default=None, min_length=1)
    noise_multiplier: float | None = Field(default=None, gt=0)

    @property
    def blocks(self) -> int:
        """How many partitions of texts are voted for."""
        return 2 + (self.words is not None)

    @property
    def sigma(self) -> float:
        """The noise multiplier that a recipe has filled in."""
        return self.noise_multiplier or NOISE


class MatchedRecipe(Recipe):
    """A recipe with a `match` block.

    Attributes:
        match: how released text follows the corpus in topics and lengths; None leaves it as the model writes it.
    """

    match: MatchConfig | None = None

    @model_validator(mode="after")
    def _users_can_vote(self) -> "MatchedRecipe":
        if self.match and self.privacy.unit is units.PrivacyUnit.PHRASE:
            raise ValueError("privacy.unit is 'phrase', and 'match' counts the texts of users: remove 'match'")
        return self

    @model_validator(mode="after")
    def _votes_leave_the_budget_to_others(self) -> "MatchedRecipe":
        if self.match and self.match.noise_multiplier is None:
            sigma = small_vote_noise(self.privacy.epsilon)
            object.__setattr__(self, "match", self.match.model_copy(update={"noise_multiplier": sigma}))  # it is frozen
        return self

    @property
    def free(self) -> Mapping[str, Any]:
        """What is left out of the release id. Users vote for topics of written texts, so with `match` less is."""
        return FREE if self.match is None else {name: left for name, left in FREE.items() if name != "generation"}

    @property
    def release_id(self) -> str:
        """Name of the release: equal recipes are the same release."""
        return self._named(self.free)

    def _named_by(self, free: Mapping[str, Any]) -> Json:
        """All that names the release, as JSON values."""
        shape = super()._named_by(free)
        if self.match and self.match.words is None:  # as in the releases of before there were any
            del shape["match"]["words"]
        return shape

    def candidates(self, texts: int) -> int:
        """How many texts the released model writes for `texts` that are released."""
        return texts if self.match is None else math.ceil(texts * self.match.candidates)


@dataclass(frozen=True)
class Match(Block):
    """One noisy vote of the users by topic and length, and released words; nothing without the `match` block."""

    parts: int

    def stages(self, recipe: MatchedRecipe) -> tuple[Stage, ...]:
        """The charged vote; refused where it costs more than the budget by itself."""
        match = recipe.match
        if match is None:
            return ()
        assert recipe.generation is not None, "what is matched is written"
        margins, texts = _margins(match, recipe), recipe.generation.texts
        candidates = recipe.candidates(texts)
        kept = f"{texts} texts of {candidates} are kept"
        read = SENTENCES_CALL + (recipe.corpus.max_records_per_user or 1) * SENTENCE
        efforts: tuple[Effort, ...] = (
            Effort("product", _EMBEDDINGS * candidates * SENTENCE),
            Effort("product", read, users=True, processes=self.parts, threads=False),
        )
        words = f"; words of {match.words}" if match.words else ""
        detail = f"one Gaussian release of multiplier {match.sigma:g}{words}; {kept}"
        work: tuple[Work, ...] = (Work(PARTS_VOTED, self.parts),)
        if match.words:  # how many texts lack one is known when the votes are
            writing: Any = recipe.generation.model_copy(update={"texts": math.ceil(_OPENED * candidates)})
            (written,) = Writing(MATCH, writing, TEXTS_OPENED).stages(recipe)
            work, efforts = (*work, *written.work), (*efforts, *written.efforts)
        return (Stage(MATCH, "private text", detail, (margins.event,), work=work, efforts=efforts, mechanism=margins),)

    def assumptions(self, recipe: MatchedRecipe) -> tuple[Placed, ...]:
        """What holds of any noise on a grid."""
        return () if recipe.match is None else at(Where.NOISE, DISCRETE_NOISE["gaussian"])

    def check(self, recipe: MatchedRecipe) -> None:
        """Refuse the block where its packages or its words are missing."""
        if recipe.match is None:
            return
        if find_spec("sklearn") is None:
            raise errors.ConfigError("match needs scikit-learn: pip install 'rayprivacy[eval]', or remove the block.")
        sentence_weights()
        if recipe.match.words is not None:
            profile_of(recipe.match.words)


def profile_of(path: str) -> Profile:
    """The profile whose words users vote for; ConfigError where the file is none, or has no words."""
    found = read_profile(path, WORDS)
    if not found.words:
        raise errors.ConfigError(
            f"{WORDS} is {path}, a profile in which no word passed its threshold: take one with a larger --share,"
            " or leave the key out."
        )
    return found


def opener_tokens(recipe: Any) -> int:
    """How many tokens an opener has at most; 0 for a recipe without words."""
    match = getattr(recipe, "match", None)
    return _OPENER if match is not None and match.words is not None else 0


def _margins(match: MatchConfig, recipe: Recipe) -> Margins:
    """The mechanism of the votes; its charge does not depend on the number of cells, which is not known yet."""
    privacy = recipe.privacy
    margins = Margins((1,) * match.blocks, match.sigma, privacy.unit)
    alone = epsilon([margins.event], privacy.delta, "pld")
    if alone >= privacy.epsilon:
        raise errors.ConfigError(
            f"match.noise_multiplier is {match.sigma:g}: these votes alone cost epsilon {alone:.2g}, and"
            f" privacy.epsilon is {privacy.epsilon:g}: give them more noise, or remove the block."
        )
    return margins
