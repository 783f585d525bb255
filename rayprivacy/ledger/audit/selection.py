"""The Renyi cost of the winner of a secret number of trials (Papernot & Steinke 2022), for the auditor.

At order a, with r the cost of one trial, m the mean number of trials, and for the truncated negative binomial of shape
eta its stopping chance gamma (Theorems 2 and 6):

    negative binomial:  r(a) + log(m)/(a-1) + (1 + eta) * min over b of [ (1 - 1/b) r(b) - log(gamma)/b ]
    Poisson:            r(a) + log(m)/(a-1) + m * delta(log(1 + 1/(a-1)))

Any auxiliary order b gives a bound. The least cost uses the grid below and the fact that a Renyi cost never falls as
the order rises; the greatest uses b = a alone. A store that takes any orders in between is honest.
"""

import math
from collections.abc import Callable

from scipy.optimize import brentq

GRID = (
    *(1.02, 1.05),
    *(1 + tenth / 10.0 for tenth in range(1, 100)),
    *map(float, range(11, 65)),
    *(72.0, 80.0, 96.0, 128.0, 160.0, 192.0, 256.0, 384.0, 512.0, 768.0, 1024.0, 2048.0, 4096.0),
)
_TOLERANCE = 1e-6

Curve = Callable[[float], tuple[float, float] | None]


def winner(trial: Curve, order: float, mean: float, shape: float | str) -> tuple[float, float] | None:
    """The least and the greatest cost that an honest store may record; None when a trial has no cost."""
    single = trial(order)
    curve = [(b, found[0]) for b in sorted({*GRID, order}) if (found := trial(b)) is not None]
    if single is None or not curve:
        return None
    try:
        least = min(_cost(curve, b, r, mean, shape) for b, r in curve if b >= order)
        most = _cost([(order, single[1])], order, single[1], mean, shape)
    except (ArithmeticError, ValueError, RuntimeError):
        return None
    return least * (1 - _TOLERANCE), most * (1 + _TOLERANCE)


def _cost(curve: list[tuple[float, float]], order: float, cost: float, mean: float, shape: float | str) -> float:
    if isinstance(shape, str):
        target = math.log1p(1 / (order - 1))
        logs = ((b - 1) * (r - target + math.log1p(-1 / b)) - math.log(b) for b, r in curve)
        extra = mean * math.exp(min(0.0, *logs))
    else:
        log_stop = _log_stopping_chance(mean, shape)
        extra = (1 + shape) * min((1 - 1 / b) * r - log_stop / b for b, r in curve)
    return cost + math.log(mean) / (order - 1) + extra


def _log_stopping_chance(mean: float, shape: float) -> float:
    """log gamma, from mean = shape (1/gamma - 1) / (1 - gamma^shape), or its limit for shape 0."""

    def excess(span: float) -> float:
        below = -math.expm1(-shape * span) / shape if shape > 0 else span
        return math.log(math.expm1(span)) - math.log(below) - math.log(mean)

    return -float(brentq(excess, 1e-12, 60.0, xtol=1e-14))
