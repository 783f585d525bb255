"""The GDP filter, for Gaussian events: exact, and valid under full adaptivity at no cost.

Admit while the sum of 1 / sigma_eff^2 stays within mu*^2, where mu* is the largest mu whose curve fits (epsilon*,
delta*) (Smith & Thakurta 2022; Koskela et al. 2023).

>>> rule = GdpRule(Budget(3.0, 1e-6))
>>> half = (rule.limit // 2,)
>>> rule.admits(half), rule.admits((rule.limit + 1,))
(True, False)
"""

import math
from fractions import Fraction

from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting.accountant import gdp_cost
from rayprivacy.accounting.gaussian import epsilon_of, mu_of
from rayprivacy.core.units import Budget
from rayprivacy.ledger.filters.rule import SumRule


class GdpRule(SumRule):
    """Sum of 1 / sigma^2, at most mu*^2."""

    claim = "analytic Gaussian (GDP filter)"

    def __init__(self, budget: Budget) -> None:
        mu = mu_of(budget)
        super().__init__(budget, mu * mu * (1 - 2**-52))  # the float product may be rounded up

    def price(self, event: DpEvent) -> Fraction:
        """The mu^2 of the event."""
        return gdp_cost(event)

    def epsilon_of(self, spent: float) -> float:
        """The epsilon of this mu^2."""
        return epsilon_of(math.sqrt(spent), self._budget.delta)
