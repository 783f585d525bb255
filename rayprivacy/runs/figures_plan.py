"""The plan of a recipe's `figures` block: one charge, of a share of the budget. Imports neither torch nor Ray."""

import math
from dataclasses import dataclass
from importlib.util import find_spec

from dp_accounting.dp_event import GaussianDpEvent

from rayprivacy.core.errors import ConfigError
from rayprivacy.ledger.least_noise import gaussian_noise, is_enough
from rayprivacy.models.size import size_of
from rayprivacy.models.sources import sentence_weights
from rayprivacy.release.figure_vectors import FigureVectors
from rayprivacy.runs.assumptions import DISCRETE_NOISE, Placed, Where, at
from rayprivacy.runs.calibration import kept
from rayprivacy.runs.plan import SENTENCE, SENTENCES_CALL, TEXT_TOKENS, Block, Effort, Plan, Stage, Work
from rayprivacy.runs.recipe import Recipe

FIGURES, PARTS_ASKED = "figures that may be shown", "parts_asked"
RECORDS = 8  # of a user that are looked at
MODELS = 3  # that read held-out text at most: the base, what it became by pretraining, and the released one
_DIGITS = 1e4
BY_MEANING = ("topics", "recall")
_SAYS = (
    "Noisy sums over all users, held out or not, left the private side as well: the figures marked 'releasable: true'."
    " The bounds of a loss were made from public numbers and released text alone."
)


@dataclass(frozen=True)
class Figures(Block):
    """One noisy sum of all users' vectors, after everything else; nothing without the `figures` block."""

    parts: int  # of the corpus, each of which is one task

    def stages(self, recipe: Recipe) -> tuple[Stage, ...]:
        """The charged stage."""
        if recipe.figures is None:
            return ()
        mechanism = FigureVectors(1, _noise(recipe.figures.share, recipe), recipe.privacy.unit)
        records = min(recipe.corpus.max_records_per_user or RECORDS, RECORDS)
        read, share = size_of(recipe.model.base).forward(MODELS * records * TEXT_TOKENS), recipe.corpus.holdout
        embedded = (1 - share) * (SENTENCES_CALL + records * SENTENCE) if {*BY_MEANING} & {*recipe.figures.of} else 0.0
        efforts = (
            Effort("encode", share * read, users=True),
            Effort("product", embedded, users=True, processes=self.parts, threads=False),
        )
        detail = f"one Gaussian release of multiplier {mechanism.sigma:.4g}, {recipe.figures.share:.3g} of the budget"
        charges, work = (mechanism.event,), (Work(PARTS_ASKED, self.parts + 1),)  # and the held-out users
        return (Stage(FIGURES, "private text", detail, charges, work=work, efforts=efforts, mechanism=mechanism),)

    def assumptions(self, recipe: Recipe) -> tuple[Placed, ...]:
        """What left, and what holds of any noise on a grid."""
        if recipe.figures is None:
            return ()
        return (*at(Where.RELEASED, _SAYS), *at(Where.NOISE, DISCRETE_NOISE["gaussian"]))

    def check(self, recipe: Recipe) -> None:
        """Refuse figures whose packages are missing."""
        if recipe.figures is None:
            return
        if {"topics", "accuracy"} & {*recipe.figures.of} and find_spec("sklearn") is None:
            raise ConfigError(
                "figures.of names topics or accuracy, which need scikit-learn: pip install 'rayprivacy[eval]', or leave"
                " them out."
            )
        if {*BY_MEANING} & {*recipe.figures.of}:
            sentence_weights()


def require_stage(recipe: Recipe, plan: Plan) -> None:
    """Refuse the block where the method has no figures to release."""
    if recipe.figures is not None and FIGURES not in (stage.name for stage in plan.stages):
        raise ConfigError(
            f"'figures' is set and method '{recipe.method}' has no figures that it could release: remove it."
        )


def _noise(share: float, recipe: Recipe) -> float:
    """The multiplier with which the release takes this share of the squared mu of one that took the whole budget."""
    budget, composition = recipe.privacy.budget, recipe.privacy.composition

    def is_whole(sigma: float) -> bool:
        return is_enough(GaussianDpEvent(sigma * math.sqrt(share)), budget, composition)

    def least() -> float:
        return math.ceil(gaussian_noise(1, budget, composition) / math.sqrt(share) * _DIGITS) / _DIGITS

    return kept(least, is_whole, "figures", share, budget.epsilon, budget.delta, composition)
