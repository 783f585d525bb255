"""The least noise that a budget allows: from (epsilon, delta) and a number of queries to sigma_eff.

>>> sigma = sigma_for(100, Budget(4.887, 1e-6))
>>> round(sigma, 2)
10.0
"""

import math

from rayprivacy.accounting.events import MAX_COUNT
from rayprivacy.accounting.gaussian import mu_of
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.units import Budget

_ROUND_UP = 1 + 1e-9  # far above the rounding of the ledger's sum, so that exactly these queries are admitted


def sigma_for(queries: int, budget: Budget) -> float:
    """Smallest noise std / L2 sensitivity at which `queries` Gaussian events fit the budget together, rounded up.

    Raises:
        ConfigError: queries is not a positive whole number.
    """
    if type(queries) is not int or not 1 <= queries <= MAX_COUNT:
        raise ConfigError(f"queries is {queries!r}: give a whole number of at least 1.")
    return math.sqrt(queries) / mu_of(budget) * _ROUND_UP
