"""Metric local privacy: epsilons of documents add up, and never meet those of a central account.

Source: Feyisetan et al. 2020 and SanText (Yue et al. 2021). A token is epsilon * d(x, x') private, so a document of at
most L tokens whose distances are at most D is L * epsilon * D private; runs on the same document add up. That holds for
the words that all of them protect: two lists of protected words make two accounts.
"""

from fractions import Fraction

from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting.events import leaves, protected_by
from rayprivacy.accounting.metric import MetricLocalDpEvent, exact_epsilon
from rayprivacy.core.errors import EventError
from rayprivacy.core.units import Budget
from rayprivacy.ledger.filters.grid import Vector, down, real, up
from rayprivacy.ledger.meaning import words_named


class MetricRule:
    """Sum of the per-document epsilons, at most epsilon*.

    Attributes:
        protected: digest of the list of protected words, empty for all; None where no release has said it yet.
    """

    size = 1
    claim = "basic composition of metric local privacy, per document"

    def __init__(self, budget: Budget, protected: str | None = None) -> None:
        self._budget = budget
        self.protected = protected
        self.limit = down(budget.epsilon)

    def cost(self, event: DpEvent, used: Vector) -> Vector:
        """Tokens times (epsilon times diameter, and the cost of words that are kept).

        Raises:
            EventError: the event is of another kind, or protects other words than the account.
        """
        total = Fraction(0)
        for leaf, times in leaves(event):
            if type(leaf) is not MetricLocalDpEvent:
                raise EventError(
                    f"the event is a {type(leaf).__name__}: composition 'metric' takes metric-local events."
                )
            total += exact_epsilon(leaf) * times
        found = protected_by(event)
        if self.protected not in (None, found):
            raise EventError(
                f"the release protects {words_named(found)} and the account {words_named(self.protected)}: charge"
                " another metric-local account of the same corpus, because the two epsilons do not add."
            )
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
