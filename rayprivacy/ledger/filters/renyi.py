"""The RDP filters: at one order fixed in advance, or at several orders that share delta.

One order alpha*: admit while the Renyi costs at alpha* sum to no more than what converts to (epsilon*, delta*). Renyi
costs at a fixed order add up under full adaptivity; choosing the order afterwards would not be valid (Feldman & Zrnic
2021). The order is chosen from the plan, before the first charge.

Weighted orders: give each order alpha a share delta_alpha of delta* and admit while AT LEAST ONE order still satisfies
sum <= epsilon* - log(1 / delta_alpha) / (alpha - 1). For each order, exp((alpha - 1)(loss - sum)) is a supermartingale,
so the loss exceeds epsilon* while that order's sum fits with probability at most delta_alpha, and the shares add up to
delta* (Lecuyer 2021, theorem on filters over the Renyi curve, with unequal shares). Costs a little delta, and need not
guess the right order.
"""

import math

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


class WeightedOrdersRule:
    """Sums at several orders, of which one must fit."""

    def __init__(self, budget: Budget, shares: tuple[tuple[float, float], ...]) -> None:
        self._budget = budget
        self._shares = shares
        self._orders = tuple(order for order, _ in shares)
        self.size = len(shares)
        self.limits = tuple(down(renyi.tail_cap(order, budget.epsilon, share)) for order, share in shares)
        self.claim = f"Renyi DP at {self.size} weighted orders (RDP filter)"

    def cost(self, event: DpEvent, used: Vector) -> Vector:
        """The Renyi cost of the event at every order."""
        return tuple(up(value) for value in renyi.rdp(event, self._orders))

    def admits(self, used: Vector) -> bool:
        """Whether one order's sum fits."""
        return any(sum_ <= limit for sum_, limit in zip(used, self.limits, strict=True))

    def share(self, used: Vector) -> float:
        """Part of the cap that is used at the order that has most left."""
        return min(sum_ / limit for sum_, limit in zip(used, self.limits, strict=True))

    def epsilon(self, used: Vector) -> float:
        """The epsilon at the best of the orders; zero when nothing is used."""
        return min(self._epsilons(used)) if any(used) else 0.0

    def left(self, used: Vector) -> float:
        """The epsilon of what is left at the order that has most left."""
        rest = tuple(limit - sum_ for sum_, limit in zip(used, self.limits, strict=True))
        most = max((e for e, steps in zip(self._epsilons(rest), rest, strict=True) if steps > 0), default=0.0)
        return min(self._budget.epsilon, most)

    def _epsilons(self, used: Vector) -> list[float]:
        pairs = zip(used, self._shares, strict=True)
        return [real(steps) + math.log(1 / share) / (order - 1) for steps, (order, share) in pairs]
