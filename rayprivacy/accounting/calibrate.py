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
_LEAST_SIGMA = 1e-3
_MOST_SIGMA = 1e9
_TOLERANCE = 1e-4


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

    def enough(sigma: float) -> bool:
        return cost(sigma) <= epsilon

    high = _bracket(enough, min(max(start, _LEAST_SIGMA), _MOST_SIGMA))
    if not _LEAST_SIGMA <= high <= _MOST_SIGMA:
        raise ConfigError(
            f"epsilon is {epsilon:g}, which no noise multiplier from 1e-3 to 1e9 meets: check the options."
        )
    answer = _digits_up(_bisect(enough, high / 4, high))
    while not enough(answer):
        answer = _digits_up(answer * (1 + _TOLERANCE))
    return answer


def _bracket(enough: Callable[[float], bool], start: float) -> float:
    """A sigma that is enough while a quarter of it is not; or one at the least of the range, or outside of it."""
    high = start
    if enough(high):
        while high > _LEAST_SIGMA and enough(high / 4):  # invariant: high is enough
            high /= 4
        return high
    high *= 4
    while high <= _MOST_SIGMA and not enough(high):  # invariant: high / 4 is not enough
        high *= 4
    return high


def _bisect(enough: Callable[[float], bool], low: float, high: float) -> float:
    """The least sigma between two that is enough, to within a factor of 1 + 1e-4 and from above."""
    while high > low * (1 + _TOLERANCE):  # invariant: high is enough, and low is not or is out of range
        middle = math.sqrt(low * high)
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def _digits_up(value: float) -> float:
    """The value rounded up to five significant digits."""
    unit = Decimal(1).scaleb(Decimal(value).adjusted() - 4)
    return float(Decimal(value).quantize(unit, rounding=ROUND_CEILING))
