"""The zCDP filter: the sum of rho, for Gaussian and Laplace events.

Admit while the sum stays within rho*, the largest rho whose (epsilon, delta) conversion fits the cap. It is valid
under full adaptivity (Rogers et al. 2016; Feldman & Zrnic 2021). On Gaussian events alone the GDP filter is always at
least as good; this is the rule for accounts that also take Laplace noise.
"""

from fractions import Fraction

from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting import zcdp
from rayprivacy.core.units import Budget
from rayprivacy.ledger.filters.rule import SumRule


class ZcdpRule(SumRule):
    """Sum of rho, at most rho*."""

    claim = "zero-concentrated DP (zCDP filter)"

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget, zcdp.rho_cap(budget))

    def price(self, event: DpEvent) -> Fraction:
        """The rho of the event."""
        return zcdp.rho(event)

    def epsilon_of(self, spent: float) -> float:
        """The epsilon of this rho."""
        return zcdp.epsilon_of_rho(spent, self._budget.delta)
