"""The RDP filter, at one order alpha* that is fixed in advance.

Admit while the Renyi costs at alpha* sum to no more than what converts to (epsilon*, delta*). Renyi costs at a fixed
order add up under full adaptivity; choosing the order afterwards would not be valid (Feldman & Zrnic 2021). The order
is chosen from the plan, before the first charge.
"""

from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting import renyi
from rayprivacy.core.units import Budget
from rayprivacy.ledger.filters.grid import Vector, down, real, up


class OneOrderRule:
    """Sum of the Renyi cost at one order, at most what the cap allows.

    Raises:
        ConfigError: at this order the cap leaves nothing.
    """

    size = 1

    def __init__(self, budget: Budget, order: float) -> None:
        self._budget = budget
        self._order = order
        self.limit = down(renyi.rdp_cap(order, budget))
        self.claim = f"Renyi DP at order {order:g} (RDP filter)"

    def cost(self, event: DpEvent, used: Vector) -> Vector:
        """The Renyi cost of the event at the order."""
        return (up(renyi.rdp(event, (self._order,))[0]),)

    def admits(self, used: Vector) -> bool:
        """Whether the cap holds."""
        return used[0] <= self.limit

    def share(self, used: Vector) -> float:
        """Part of the cap that is used."""
        return used[0] / self.limit

    def epsilon(self, used: Vector) -> float:
        """The epsilon of this Renyi cost; zero when nothing is used."""
        return renyi.epsilon_at(real(used[0]), self._order, self._budget.delta) if used[0] else 0.0

    def left(self, used: Vector) -> float:
        """The epsilon of what is left at the order."""
        return min(self._budget.epsilon, self.epsilon((max(0, self.limit - used[0]),)))
