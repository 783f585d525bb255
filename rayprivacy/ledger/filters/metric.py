"""Metric local privacy: epsilons of documents add up, and never meet those of a central account.

Source: Feyisetan et al. 2020 and SanText (Yue et al. 2021). A token is epsilon * d(x, x') private, so a document of at
most L tokens whose distances are at most D is L * epsilon * D private; runs on the same document add up. That holds for
the words that all of them protect: two lists of protected words make two accounts (`accounts.check_words`).
"""

from fractions import Fraction

from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting.events import leaves, protected_by
from rayprivacy.accounting.metric import MetricLocalDpEvent, exact_epsilon
from rayprivacy.core.errors import EventError
from rayprivacy.core.units import Budget
from rayprivacy.ledger.filters.grid import Vector, down, real, up


class MetricRule:
    """Sum of the per-document epsilons, at most epsilon*."""

    size = 1
    claim = "basic composition of metric local privacy, per document"

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.limit = down(budget.epsilon)

    def cost(self, event: DpEvent, used: Vector) -> Vector:
        """Tokens times (epsilon times diameter, and the cost of words that are kept).

        Raises:
            EventError: the event is of another kind, or its parts protect the words of two lists.
        """
        protected_by(event)
        total = Fraction(0)
        for leaf, times in leaves(event):
            if type(leaf) is not MetricLocalDpEvent:
                raise EventError(
                    f"the event is a {type(leaf).__name__}: composition 'metric' takes metric-local events."
                )
            total += exact_epsilon(leaf) * times
        return (up(total),)

    def admits(self, used: Vector) -> bool:
        """Whether the cap holds."""
        return used[0] <= self.limit

    def share(self, used: Vector) -> float:
        """Part of the cap that is used."""
        return used[0] / self.limit

    def epsilon(self, used: Vector) -> float:
        """The sum itself."""
        return real(used[0])

    def left(self, used: Vector) -> float:
        """What is left of epsilon*."""
        return max(0.0, real(self.limit - used[0]))
