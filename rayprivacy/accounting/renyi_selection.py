"""Renyi cost of publishing the winner of a secret number of trials, from the curve of one trial.

Source: Papernot & Steinke 2022 (arXiv 2110.03620), Theorem 2 (truncated negative binomial) and Theorem 6 (Poisson).
For a trial with Renyi cost r(a) at order a and an expected number of trials m:

    negative binomial:  r(a) + log(m)/(a-1) + (1 + shape) * min over b of [ (1 - 1/b) r(b) + log(1/gamma)/b ]
    Poisson:            r(a) + log(m)/(a-1) + m * delta',   one trial being (log(1 + 1/(a-1)), delta')-private

The other order b and delta' are free choices: any grid gives a bound and a fine one a better bound. A Renyi cost never
falls as the order rises, so each entry is at most every later one.

>>> orders = tuple(range(2, 65))
>>> one = [order * 0.005 for order in orders]  # Gaussian noise of multiplier 10
>>> [round(cost, 3) for cost in of_the_winner(orders, one, 10.0, 1.0)[:2]]
[0.639, 0.639]
"""

import itertools
import math
from collections.abc import Sequence

from rayprivacy.accounting.selection import gamma_of


def of_the_winner(orders: Sequence[float], trial: Sequence[float], mean: float, shape: float) -> tuple[float, ...]:
    """Renyi costs of the winner at increasing `orders`; shape infinity is the Poisson distribution."""
    if shape == math.inf:
        extra = [mean * _delta(orders, trial, math.log1p(1 / (order - 1))) for order in orders]
    else:
        log_gamma = math.log(gamma_of(mean, shape))
        best = min((1 - 1 / order) * cost - log_gamma / order for order, cost in zip(orders, trial, strict=True))
        extra = [(1 + shape) * best] * len(orders)
    costs = [r + math.log(mean) / (a - 1) + e for a, r, e in zip(orders, trial, extra, strict=True)]
    return tuple(itertools.accumulate(reversed(costs), min))[::-1]


def _delta(orders: Sequence[float], costs: Sequence[float], epsilon: float) -> float:
    """The least delta at epsilon over the orders, by Canonne, Kamath & Steinke 2020."""
    logs = ((a - 1) * (r - epsilon + math.log1p(-1 / a)) - math.log(a) for a, r in zip(orders, costs, strict=True))
    return math.exp(min(0.0, *logs))
