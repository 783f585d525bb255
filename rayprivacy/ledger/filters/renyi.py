"""The RDP filter, at one order alpha* that is fixed in advance.

Admit while the Renyi costs at alpha* sum to no more than what converts to (epsilon*, delta*). Renyi costs at a fixed
order add up under full adaptivity; choosing the order afterwards would not be valid (Feldman & Zrnic 2021). The order
is chosen from the plan, before the first charge.
"""

from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting import renyi
from rayprivacy.core.units import Budget
from rayprivacy.ledger.filters.rule import SumRule


class OneOrderRule(SumRule):
    """Sum of the Renyi cost at one order, at most what the cap allows; ConfigError when it allows nothing."""

    def __init__(self, budget: Budget, order: float) -> None:
        super().__init__(budget, renyi.rdp_cap(order, budget))
        self._order = order
        self.claim = f"Renyi DP at order {order:g} (RDP filter)"

    def price(self, event: DpEvent) -> float:
        """The Renyi cost of the event at the order."""
        return renyi.rdp(event, (self._order,))[0]

    def epsilon_of(self, spent: float) -> float:
        """The epsilon of this Renyi cost; zero when nothing is used."""
        return renyi.epsilon_at(spent, self._order, self._budget.delta) if spent else 0.0
