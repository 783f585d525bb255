"""The zCDP filter: the sum of rho, for Gaussian and Laplace events.

Admit while the sum stays within rho*, the largest rho whose (epsilon, delta) conversion fits the cap. It is valid
under full adaptivity (Rogers et al. 2016; Feldman & Zrnic 2021). On Gaussian events alone the GDP filter is always at
least as good; this is the rule for accounts that also take Laplace noise.
"""

from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting import zcdp
from rayprivacy.core.units import Budget
from rayprivacy.ledger.filters.grid import Vector, down, real, up


class ZcdpRule:
    """Sum of rho, at most rho*."""

    size = 1
    claim = "zero-concentrated DP (zCDP filter)"

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.limit = down(zcdp.rho_cap(budget))

    def cost(self, event: DpEvent, used: Vector) -> Vector:
        """The rho of the event."""
        return (up(zcdp.rho(event)),)

    def admits(self, used: Vector) -> bool:
        """Whether the cap holds."""
        return used[0] <= self.limit

    def share(self, used: Vector) -> float:
        """Part of the cap that is used."""
        return used[0] / self.limit

    def epsilon(self, used: Vector) -> float:
        """The epsilon of this rho."""
        return zcdp.epsilon_of_rho(real(used[0]), self._budget.delta)

    def left(self, used: Vector) -> float:
        """The epsilon of what is left of rho*."""
        return min(self._budget.epsilon, self.epsilon((max(0, self.limit - used[0]),)))
