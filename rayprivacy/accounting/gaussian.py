"""The privacy curve of Gaussian noise and that of zero-concentrated DP, rounded so that no figure is too small.

Gaussian noise whose standard deviation is sigma times the L2 sensitivity is mu-GDP with mu = 1 / sigma (Dong, Roth & Su
2022), and mu-GDP is exactly the (epsilon, delta) curve of Balle & Wang (2018):

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - exp(epsilon) * Phi(-mu/2 - epsilon/mu)

Adaptive Gaussian mechanisms compose by mu^2 = mu_1^2 + mu_2^2 + ..., without loss. The two terms above nearly cancel
when mu is small and overflow when epsilon is large, so they are kept as logarithms and the rounding error of their
difference is bounded and added: the delta returned is never below the true one.

>>> round(epsilon_of(1.0, 1e-6), 3)
4.887

A mechanism is rho-zCDP when its Renyi cost is at most rho * a at every order a > 1 (Bun & Steinke 2016). Gaussian noise
of multiplier sigma is 1/(2 sigma^2)-zCDP, a mechanism of pure epsilon is (epsilon^2/2)-zCDP, and rhos add up, fully
adaptively, in fractions without any rounding. Sampling has no useful rho and is refused.

>>> from dp_accounting import SelfComposedDpEvent
>>> rho(SelfComposedDpEvent(GaussianDpEvent(10.0), 100))
Fraction(1, 2)
>>> round(epsilon_of_rho(0.5, 1e-6), 3)
5.222
"""

import math
import sys
from collections.abc import Callable
from fractions import Fraction

from dp_accounting.dp_event import DpEvent, GaussianDpEvent, LaplaceDpEvent
from scipy.optimize import minimize_scalar
from scipy.special import log_ndtr

from rayprivacy.accounting.events import checked_leaves, total
from rayprivacy.core.errors import ConfigError, EventError
from rayprivacy.core.units import Budget

_ULPS = 4 * sys.float_info.epsilon
_UP = 1 + 1e-12


def delta_of(mu: float, epsilon: float) -> float:
    """The delta of mu-GDP at `epsilon`, an upper bound within float rounding of the truth."""
    _check("mu", mu)
    _check("epsilon", epsilon)
    if mu == 0:
        return 0.0
    ratio = epsilon / mu
    if math.isinf(ratio):
        return 0.0
    high, low = mu / 2 - ratio, -mu / 2 - ratio
    first, second = float(log_ndtr(high)), epsilon + float(log_ndtr(low))
    slack = _ULPS * (abs(first) + abs(second) + 2 * epsilon + (1 + abs(high) + abs(low)) * (mu / 2 + ratio))
    return min(1.0, math.exp(min(0.0, first + slack)) * -math.expm1(-max(0.0, first - second) - slack))


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest epsilon that mu-GDP gives at `delta`, rounded up."""
    _check("mu", mu)
    check_delta(delta)
    if mu == 0 or delta_of(mu, 0.0) <= delta:
        return 0.0
    return _boundary(lambda epsilon: delta_of(mu, epsilon) > delta)[1]


def mu_of(budget: Budget) -> float:
    """The largest mu whose whole curve stays within (epsilon, delta), rounded down."""
    return _boundary(lambda mu: delta_of(mu, budget.epsilon) <= budget.delta)[0]


def _boundary(holds: Callable[[float], bool]) -> tuple[float, float]:
    """Bisect to neighbouring floats (x, y) with holds(x) and not holds(y), for a predicate true near zero."""
    low, high = 1.0, 1.0
    while not holds(low):
        high, low = low, low / 4
    while holds(high):
        low, high = high, high * 4
    while low < (middle := low + (high - low) / 2) < high:
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def check_delta(delta: float) -> None:
    """Require a delta between 0 and 1."""
    if not 0 < delta < 1:
        raise ConfigError(f"delta is {delta}: give a number between 0 and 1, e.g. 1e-6.")


def _check(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ConfigError(f"{name} is {value}: give a finite number that is not negative.")


def rho(event: DpEvent) -> Fraction:
    """The exact rho of a composition of Gaussian and Laplace events."""
    return total([_rho(leaf) * times for leaf, times in checked_leaves(event)])


def epsilon_of_rho(rho: float, delta: float) -> float:
    """An epsilon that rho-zCDP gives at delta, rounded up.

    Source: Canonne, Kamath & Steinke 2020: the least over a > 1 of rho*a + log((a-1)/a) - (log delta + log a)/(a-1).
    Every a gives a valid bound, so the search for the least one may stop anywhere.
    """
    _check("rho", rho)
    check_delta(delta)
    if rho == 0:
        return 0.0
    centre = (math.log(-math.log(delta)) - math.log(rho)) / 2  # the best log(a - 1) without the two small terms

    def at(log_t: float) -> float:
        t = math.exp(log_t)
        log_order = math.log1p(t)
        return rho * (1 + t) + (log_t - log_order) - (math.log(delta) + log_order) / t

    found = minimize_scalar(at, bounds=(centre - 5, centre + 5), method="bounded", options={"xatol": 1e-9})
    return max(0.0, float(found.fun)) * _UP


def rho_cap(budget: Budget) -> float:
    """The largest rho whose epsilon at the budget's delta is within its epsilon, rounded down."""
    return _boundary(lambda value: epsilon_of_rho(value, budget.delta) <= budget.epsilon)[0]


def _rho(leaf: DpEvent) -> Fraction:
    if type(leaf) is GaussianDpEvent or type(leaf) is LaplaceDpEvent:
        return 1 / (2 * Fraction(leaf.noise_multiplier) ** 2)
    raise EventError(f"the event holds a {type(leaf).__name__}: zCDP takes Gaussian and Laplace events only.")
