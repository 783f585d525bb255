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
from rayprivacy.ledger.filters.rule import SumRule


class MetricRule(SumRule):
    """Sum of the per-document epsilons, at most epsilon*."""

    claim = "basic composition of metric local privacy, per document"

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget, budget.epsilon)

    def price(self, event: DpEvent) -> Fraction:
        """Tokens times (epsilon times diameter, and the cost of words that are kept), for the words of one list."""
        protected_by(event)  # refuses parts that protect two lists
        total = Fraction(0)
        for leaf, times in leaves(event):
            if type(leaf) is not MetricLocalDpEvent:
                raise EventError(
                    f"the event is a {type(leaf).__name__}: composition 'metric' takes metric-local events."
                )
            total += exact_epsilon(leaf) * times
        return total

    def epsilon_of(self, spent: float) -> float:
        """The sum itself."""
        return spent
