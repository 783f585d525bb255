"""The plan of a profile: two releases at one noise multiplier, of counts by public cells and of words and labels.

The cells are fixed, so that what all of them hold is one Gaussian vector: a count of users, and margins by records, by
tokens and by script. Words and values of labels are an unknown set: their counts have a threshold. Both are one request
of the account, of which each takes half. Imports neither torch nor Ray.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting.events import delta_left
from rayprivacy.core.units import Budget, Protection
from rayprivacy.ledger.least_noise import gaussian_noise, is_enough
from rayprivacy.methods.profile.cells import BLOCKS
from rayprivacy.methods.profile.recipe import ProfileRecipe
from rayprivacy.release.histogram import Totals
from rayprivacy.release.thresholded import ThresholdedCounts
from rayprivacy.release.votes import SCALE
from rayprivacy.runs.account import whole
from rayprivacy.runs.assumptions import DISCRETE_NOISE, Placed, Where, at
from rayprivacy.runs.calibration import kept
from rayprivacy.runs.plan import EVALUATION, Block, Effort, Plan, Stage, Work

COUNTING, COUNTS, KEYWORDS = "counting", "counts of users", "words and labels"
PARTS_COUNTED, _PARTS = "parts_counted", 8  # each is one task
_OF_DELTA = 0.01  # that the threshold takes: a tenth of it would lower the threshold by 6%
_PUBLIC = (
    "The cells of records, tokens and scripts, the words that are left out and the tokenizer are public; none was"
    " chosen by looking at the corpus."
)
_RELEASED = "Only noisy counts left the private side, and of words and labels only those above a public threshold."
_USER_FLOPS = 1e8  # that take as long as counting the texts of a user


@dataclass(frozen=True)
class Counted(Block):
    """Both releases, at the noise that the budget allows."""

    calibrated: ClassVar[bool] = True
    sigma: float = 0.0

    def fitted(self, recipe: ProfileRecipe, beside: Sequence[DpEvent]) -> "Counted":
        """With the least noise; no block charges beside it."""
        privacy = recipe.privacy
        rest = Budget(privacy.epsilon, delta_left(privacy.delta, Fraction(delta_of(recipe))))

        def enough(sigma: float) -> bool:
            charged = whole([stage.event for stage in Counted(sigma).stages(recipe) if stage.charges])
            return is_enough(charged, privacy.budget, privacy.composition)

        releases = 2 if recipe.keys else 1
        inputs = [releases, rest.epsilon, rest.delta, privacy.composition]
        return Counted(kept(lambda: gaussian_noise(releases, rest, privacy.composition), enough, "profile", *inputs))

    def stages(self, recipe: ProfileRecipe) -> tuple[Stage, ...]:
        """What is counted, and a stage with a charge for the cells, and for words and labels if any are asked for."""
        totals, work = Totals(BLOCKS, self.sigma), (Work(PARTS_COUNTED, _PARTS),)
        efforts = (Effort("product", _USER_FLOPS, users=True, processes=_PARTS, threads=False),)
        cells = f"{totals.cells} cells, noise of {totals.std:.4g} users on each"
        stages = (
            Stage(COUNTING, "private text", "nothing leaves", work=work, efforts=efforts),
            Stage(COUNTS, "bounded counts", cells, (totals.event,), efforts=(), mechanism=totals),
        )
        if not recipe.keys:
            return stages
        words = ThresholdedCounts(recipe.keys, self.sigma, delta_of(recipe))
        least = f"at most {words.most} of a user, above about {words.threshold / SCALE:.0f} users"
        return (*stages, Stage(KEYWORDS, "bounded counts", least, (words.event,), efforts=(), mechanism=words))

    def assumptions(self, recipe: ProfileRecipe) -> tuple[Placed, ...]:
        """What is public, what leaves, and the noise."""
        noise = at(Where.NOISE, DISCRETE_NOISE["gaussian"])
        return (*at(Where.PUBLIC, _PUBLIC), *at(Where.RELEASED, _RELEASED), *noise)

    def facts(self, recipe: ProfileRecipe) -> Mapping[str, Any]:
        """Protection, noise and parts."""
        return {
            "protection": Protection(recipe.privacy.unit),
            "noise": f"noise multiplier {self.sigma:.4g} of each release",
            "shards": _PARTS,
        }


def delta_of(recipe: ProfileRecipe) -> float:
    """What the threshold of words and labels takes of delta; nothing where none are asked for."""
    return recipe.privacy.delta * _OF_DELTA if recipe.keys else 0.0


def plan_run(recipe: ProfileRecipe) -> Plan:
    """The plan of a recipe."""
    return Plan.of(recipe, Counted(), measuring=Stage(EVALUATION, "nothing", efforts=()))
