"""One plan, two accountants: the tight PLD figure where it can be computed and the Renyi figure beside it.

Both are upper bounds for a plan fixed in advance, so the lesser is the plan's epsilon. Where an accountant has no
figure, the note says why; when neither has one, that is an error.

>>> figures([(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)), 1000)], 1e-5).rounded()
{'pld': 1.83, 'rdp': 2.1}
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dp_accounting.dp_event import (
    DpEvent,
    GaussianDpEvent,
    MixtureOfGaussiansDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)

from rayprivacy.accounting.accountant import AccountantName, epsilon
from rayprivacy.core.errors import EventError


@dataclass(frozen=True)
class Figures:
    """Epsilon by each accountant that has one, and a note for each that has none."""

    by: dict[str, float]
    notes: tuple[str, ...] = ()

    @property
    def epsilon(self) -> float:
        """The lesser figure."""
        return min(self.by.values())

    def rounded(self, digits: int = 2) -> dict[str, float]:
        """The figures, rounded for reading."""
        return {name: round(value, digits) for name, value in self.by.items()}


def figures(lines: Sequence[tuple[DpEvent, int]], delta: float) -> Figures:
    """The epsilon of basic mechanisms with their counts, by PLD and by Renyi orders.

    For Renyi orders a mixture counts as its costlier stand-in `at_once`.
    """
    by: dict[str, float] = {}
    notes = []
    plans: dict[AccountantName, list[DpEvent]] = {
        "pld": [SelfComposedDpEvent(leaf, times) for leaf, times in lines],
        "rdp": [SelfComposedDpEvent(at_once(leaf), times) for leaf, times in lines],
    }
    for name, plan in plans.items():
        try:
            by[name] = epsilon(plan, delta, name)
        except EventError as error:
            notes.append(f"no {name} figure: {str(error).rstrip('.')}")
    if not by:
        raise EventError(f"{notes[-1]}.")
    return Figures(by, tuple(notes))


def at_once(leaf: DpEvent) -> DpEvent:
    """A sampled Gaussian that costs at least as much as a mixture: whatever is sampled has the largest sensitivity."""
    if type(leaf) is not MixtureOfGaussiansDpEvent:
        return leaf
    pairs = list(zip(leaf.sensitivities, leaf.sampling_probs, strict=True))
    any_sampled = min(1.0, sum(p for size, p in pairs if size > 0) * (1 + 1e-9))
    return PoissonSampledDpEvent(any_sampled, GaussianDpEvent(leaf.standard_deviation / max(leaf.sensitivities)))
