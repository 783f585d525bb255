"""The least noise with which Gaussian queries fit a budget under the rule that an account of this budget would have."""

import math

from dp_accounting.dp_event import GaussianDpEvent, SelfComposedDpEvent

from rayprivacy.accounting.calibrate import least_sigma, sigma_for
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.units import Budget
from rayprivacy.ledger.filters.choose import parameters_for, rule_for


def gaussian_noise(queries: int, budget: Budget, composition: str) -> float:
    """Smallest noise std / L2 sensitivity of `queries` Gaussian events, rounded up.

    In closed form for 'gdp'; also for 'pld', whose figure for Gaussian events is the same.

    >>> gaussian_noise(100, Budget(4.887, 1e-6), "gdp") < gaussian_noise(100, Budget(4.887, 1e-6), "zcdp")
    True

    Raises:
        ConfigError: queries is not a positive whole number, or no noise is enough.
    """
    exact = sigma_for(queries, budget)
    if composition in ("gdp", "pld"):
        return exact

    def cost(sigma: float) -> float:
        event = SelfComposedDpEvent(GaussianDpEvent(sigma), queries)
        try:
            rule = rule_for(composition, budget, parameters_for(composition, budget, plan=[event]))
        except ConfigError:
            return math.inf  # so little noise that the best order leaves nothing of the cap
        used = rule.cost(event, (0,) * rule.size)
        return rule.epsilon(used) if rule.admits(used) else math.inf

    return least_sigma(cost, budget.epsilon)
