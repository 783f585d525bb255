"""Zero-concentrated DP: one exact number per mechanism, and its conversion to (epsilon, delta).

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
from fractions import Fraction

from dp_accounting.dp_event import DpEvent, GaussianDpEvent, LaplaceDpEvent
from scipy.optimize import minimize_scalar

from rayprivacy.accounting.events import from_json, leaves, to_json
from rayprivacy.accounting.exact import total
from rayprivacy.accounting.gaussian import boundary
from rayprivacy.core.errors import ConfigError, EventError
from rayprivacy.core.units import Budget

_UP = 1 + 1e-12


def rho(event: DpEvent) -> Fraction:
    """The exact rho of a composition of Gaussian and Laplace events."""
    return total([_rho(leaf) * times for leaf, times in leaves(from_json(to_json(event)))])


def epsilon_of_rho(rho: float, delta: float) -> float:
    """An epsilon that rho-zCDP gives at delta, rounded up.

    Source: Canonne, Kamath & Steinke 2020: the least over a > 1 of rho*a + log((a-1)/a) - (log delta + log a)/(a-1).
    Every a gives a valid bound, so the search for the least one may stop anywhere.
    """
    if not 0 <= rho < math.inf:
        raise ConfigError(f"rho is {rho}: give a finite number that is not negative.")
    if not 0 < delta < 1:
        raise ConfigError(f"delta is {delta}: give a number between 0 and 1, e.g. 1e-6.")
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
    return boundary(lambda value: epsilon_of_rho(value, budget.delta) <= budget.epsilon)[0]


def _rho(leaf: DpEvent) -> Fraction:
    if type(leaf) is GaussianDpEvent or type(leaf) is LaplaceDpEvent:
        return 1 / (2 * Fraction(leaf.noise_multiplier) ** 2)
    raise EventError(f"the event holds a {type(leaf).__name__}: zCDP takes Gaussian and Laplace events only.")
