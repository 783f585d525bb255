"""The least noise that a budget allows, in closed form for Gaussian queries and by bisection for anything else.

>>> sigma = sigma_for(100, Budget(4.887, 1e-6))
>>> round(sigma, 2)
10.0
>>> least_sigma(lambda sigma: 8 / sigma, 2.0)
4.0
"""

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, Decimal

from rayprivacy.accounting.fields import MAX_COUNT
from rayprivacy.accounting.gaussian import mu_of
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.units import Budget

_ROUND_UP = 1 + 1e-9  # far above the rounding of the ledger's sum, so that exactly these queries are admitted
_LEAST_SIGMA, _MOST_SIGMA = 1e-3, 1e9


def sigma_for(queries: int, budget: Budget) -> float:
    """Smallest noise std / L2 sensitivity at which `queries` Gaussian events fit the budget together, rounded up.

    Raises:
        ConfigError: queries is not a positive whole number.
    """
    check_queries(queries)
    return math.sqrt(queries) / mu_of(budget) * _ROUND_UP


def check_queries(queries: int) -> None:
    """Require a number of queries that an event can hold.

    Raises:
        ConfigError: queries is not a positive whole number.
    """
    if type(queries) is not int or not 1 <= queries <= MAX_COUNT:
        raise ConfigError(f"queries is {queries!r}: give a whole number of at least 1.")


def least_sigma(cost: Callable[[float], float], epsilon: float, start: float = 1.0) -> float:
    """About the smallest noise at which a cost that falls with the noise is at most epsilon, rounded up to 5 digits.

    The cost of the answer itself has been computed and is at most epsilon; the answer is within 2e-4 of the least.

    Args:
        cost: epsilon from sigma.
        epsilon: wanted.
        start: where the search begins; from one that just meets epsilon it takes the fewest costs.

    Raises:
        ConfigError: epsilon is not positive and finite, or no sigma from 1e-3 to 1e9 will do.
    """
    if not 0 < epsilon < math.inf:
        raise ConfigError(f"epsilon is {epsilon}: give a positive finite number.")
    low = high = min(max(start, _LEAST_SIGMA), _MOST_SIGMA)
    while cost(high) > epsilon and high < _MOST_SIGMA:
        low, high = high, high * 4
    while low == high and cost(low / 4) <= epsilon and high > _LEAST_SIGMA:
        low = high = low / 4
    low = low / 4 if low == high else low
    if not _LEAST_SIGMA <= high <= _MOST_SIGMA:
        raise ConfigError(
            f"epsilon is {epsilon:g}, which no noise multiplier from 1e-3 to 1e9 meets: check the options."
        )
    while high > low * (1 + 1e-4):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost(middle) <= epsilon else (middle, high)
    answer = _digits_up(high)
    while cost(answer) > epsilon:
        answer = _digits_up(answer * (1 + 1e-4))
    return answer


def _digits_up(value: float) -> float:
    """The value rounded up to five significant digits."""
    unit = Decimal(1).scaleb(Decimal(value).adjusted() - 4)
    return float(Decimal(value).quantize(unit, rounding=ROUND_CEILING))
