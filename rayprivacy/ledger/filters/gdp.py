"""The GDP filter, for Gaussian events: exact, and valid under full adaptivity at no cost.

Admit while the sum of 1 / sigma_eff^2 stays within mu*^2, where mu* is the largest mu whose curve fits (epsilon*,
delta*) (Smith & Thakurta 2022; Koskela et al. 2023).

>>> rule = GdpRule(Budget(3.0, 1e-6))
>>> half = (rule.limit // 2,)
>>> rule.admits(half), rule.admits((rule.limit + 1,))
(True, False)
"""

import math

from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting.accountant import gdp_cost
from rayprivacy.accounting.gaussian import epsilon_of, mu_of
from rayprivacy.core.units import Budget
from rayprivacy.ledger.filters.grid import Vector, down, real, up


class GdpRule:
    """Sum of 1 / sigma^2, at most mu*^2."""

    size = 1
    claim = "analytic Gaussian (GDP filter)"

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        mu = mu_of(budget)
        self.limit = down(mu * mu * (1 - 2**-52))  # the float product may be rounded up

    def cost(self, event: DpEvent, used: Vector) -> Vector:
        """The mu^2 of the event."""
        return (up(gdp_cost(event)),)

    def admits(self, used: Vector) -> bool:
        """Whether the cap holds."""
        return used[0] <= self.limit

    def share(self, used: Vector) -> float:
        """Part of the cap that is used."""
        return used[0] / self.limit

    def epsilon(self, used: Vector) -> float:
        """The epsilon of this mu^2."""
        return epsilon_of(math.sqrt(real(used[0])), self._budget.delta)

    def left(self, used: Vector) -> float:
        """The epsilon of what is left of mu*^2."""
        return min(self._budget.epsilon, self.epsilon((max(0, self.limit - used[0]),)))
