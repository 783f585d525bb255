"""Recipes whose released text can be matched with the corpus (see `runs.matching`)."""

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from rayprivacy.core.units import PrivacyUnit
from rayprivacy.matching.settings import MatchConfig
from rayprivacy.release.small_votes import small_vote_noise
from rayprivacy.runs.recipe import FREE, Recipe


class MatchedRecipe(Recipe):
    """A recipe with a `match` block.

    Attributes:
        match: how released text follows the corpus in topics and lengths; None leaves it as the model writes it.
    """

    match: MatchConfig | None = None

    @model_validator(mode="after")
    def _users_can_vote(self) -> "MatchedRecipe":
        if self.match and self.privacy.unit is PrivacyUnit.PHRASE:
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
