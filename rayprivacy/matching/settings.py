"""The `match` block of a recipe: how released text is made to follow the corpus in topics and lengths."""

from pydantic import Field

from rayprivacy.core.config import Config
from rayprivacy.release.small_votes import NOISE


class MatchConfig(Config):
    """How released text is matched with the corpus, for a small charge.

    Attributes:
        candidates: texts that the released model writes for each one that is kept; which are kept is free.
        cut: whether candidates may be cut at the end of a sentence, so that lengths come right.
        topics: clusters of these texts by meaning, of which each private text votes for the nearest.
        noise_multiplier: sigma of the votes by topic and length, noise std / L2 sensitivity; None lets a recipe
            take 5, or more where its epsilon is below 3 (see `release.small_votes`).
    """

    candidates: float = Field(default=3.0, ge=1, le=100)
    cut: bool = True
    topics: int = Field(default=24, ge=1, le=500)
    noise_multiplier: float | None = Field(default=None, gt=0)

    @property
    def sigma(self) -> float:
        """The noise multiplier that a recipe has filled in."""
        return self.noise_multiplier or NOISE
