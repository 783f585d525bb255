"""Renyi costs of events, the same whenever asked and never below the truth, and their conversion to (epsilon, delta).

The Renyi cost of order a of a mechanism bounds its Renyi divergence D_a over neighbouring corpora; costs of one order
add up over adaptively chosen mechanisms (Mironov 2017). A ledger may therefore admit charges by one order, fixed
beforehand (`best_order` picks it from a plan), until the sum meets the cap that (epsilon, delta) allows there:

    epsilon = r + log((a-1)/a) - (log delta + log a) / (a-1)        (Canonne, Kamath & Steinke 2020)

Costs of basic mechanisms come from dp-accounting, a fresh accountant for each. Three of its habits are guarded here.
Every cost is raised by a relative 1e-9. The costs of a sampled mechanism and of Laplace noise are logarithms of numbers
near 1, wrong by an absolute error however small they are, so they are raised by `_slack` besides. And a fractional
order at which its series does not converge (it answers infinity) takes the cost of the next whole order, which is not
smaller.

>>> cost = rdp(SelfComposedDpEvent(GaussianDpEvent(10.0), 100), (8.0,))[0]
>>> round(cost, 6), round(epsilon_at(cost, 8.0, 1e-6), 3)
(4.0, 5.543)

Publishing the winner of a secret number of trials costs, after Papernot & Steinke 2022 (arXiv 2110.03620), Theorem 2
(truncated negative binomial) and Theorem 6 (Poisson), for a trial with Renyi cost r(a) at order a and an expected
number of trials m:

    negative binomial:  r(a) + log(m)/(a-1) + (1 + shape) * min over b of [ (1 - 1/b) r(b) + log(1/gamma)/b ]
    Poisson:            r(a) + log(m)/(a-1) + m * delta',   one trial being (log(1 + 1/(a-1)), delta')-private

The other order b and delta' are free choices: any grid gives a bound and a fine one a better bound. A Renyi cost never
falls as the order rises, so each entry is at most every later one.
"""

import itertools
import json
import logging
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from dp_accounting import NeighboringRelation
from dp_accounting.dp_event import (
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    RepeatAndSelectDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.rdp import RdpAccountant
from scipy.special import gammaln

from rayprivacy.accounting.events import checked_leaves, from_json, to_json
from rayprivacy.accounting.gaussian import check_delta
from rayprivacy.accounting.selection import gamma_of
from rayprivacy.core.errors import ConfigError, EventError
from rayprivacy.core.units import Budget

_FRACTIONS = (1 + tenth / 10.0 for tenth in range(1, 100))  # computed as dp-accounting does, so equal to its own
_WHOLE = (*range(11, 64), 72, 80, 96, 128, 160, 192, 256, 384, 512, 768, 1024, 2048, 4096)
ORDERS: tuple[float, ...] = (1.02, 1.05, *_FRACTIONS, *map(float, _WHOLE))
_MOST_ORDER = 1e5  # a sampled mechanism takes time proportional to the order

Costs = npt.NDArray[np.float64]
_UP = 1 + 1e-9
_BASIC = (GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent)
logging.getLogger("absl").addFilter(lambda record: "_compute_log_a_frac" not in str(record.msg))  # handled by _basic


def rdp(event: DpEvent, orders: tuple[float, ...] = ORDERS) -> tuple[float, ...]:
    """Renyi costs of an event at each order, rounded up."""
    orders = _checked(tuple(orders))
    total = np.zeros(len(orders))
    for leaf, times in checked_leaves(event):
        total += float(times) * _curve(json.dumps(to_json(leaf)), orders)
    if not np.isfinite(total).all():
        raise EventError("the event costs more than a float holds: use more noise.")
    return tuple(total.tolist())


def epsilon_at(rdp: float, order: float, delta: float) -> float:
    """The epsilon of a Renyi cost at one order, at least 0."""
    check_delta(delta)
    _checked((order,))
    if not rdp >= 0:
        raise ConfigError(f"rdp is {rdp}: give a number that is not negative.")
    return max(0.0, rdp - _discount(order, delta))


def least_epsilon(costs: Costs, delta: float) -> float:
    """The least epsilon over ORDERS of the costs there."""
    return min(epsilon_at(cost, order, delta) for order, cost in zip(ORDERS, costs.tolist(), strict=True))


def rdp_epsilon(events: Sequence[DpEvent], delta: float) -> float:
    """The least epsilon of events together over ORDERS; 0 for none."""
    return least_epsilon(np.sum([rdp(event) for event in events], axis=0), delta) if events else 0.0


def rdp_cap(order: float, budget: Budget) -> float:
    """The largest Renyi cost at this order that fits the budget, rounded down."""
    _checked((order,))
    cap = math.nextafter(budget.epsilon + _discount(order, budget.delta), -math.inf)
    while cap > 0 and epsilon_at(cap, order, budget.delta) > budget.epsilon:
        cap = math.nextafter(cap, -math.inf)
    if cap <= 0:
        raise ConfigError(
            f"order is {order:g}, which leaves nothing of epsilon {budget.epsilon:g} at delta {budget.delta:g}:"
            " give a higher order."
        )
    return cap


def best_order(events: Sequence[DpEvent], delta: float) -> float:
    """The order of ORDERS that gives the least epsilon at delta for a plan."""
    total = np.sum([rdp(event) for event in events], axis=0) if events else np.zeros(len(ORDERS))
    return min(zip(ORDERS, total, strict=True), key=lambda pair: epsilon_at(float(pair[1]), pair[0], delta))[0]


@lru_cache(maxsize=4096)
def _curve(leaf: str, orders: tuple[float, ...]) -> Costs:
    """Costs of one basic mechanism, given as JSON text; a read-only array."""
    event = from_json(json.loads(leaf))
    if type(event) is RepeatAndSelectDpEvent:
        grid = tuple(sorted({*ORDERS, *orders}))
        winner = _of_the_winner(grid, rdp(event.event, grid), event.mean, event.shape)
        at = dict(zip(grid, winner, strict=True))
        costs = np.array([at[order] for order in orders]) * _UP
    elif type(event) in _BASIC:
        costs = _basic(event, orders)
    else:
        raise EventError(f"the event holds a {type(event).__name__}, which has no Renyi bound here: use 'pld'.")
    if not (np.isfinite(costs) & (costs > 0)).all():
        raise EventError("a mechanism has no finite Renyi cost at one of the orders: use more noise or lower orders.")
    costs.flags.writeable = False
    return costs


def _of_the_winner(orders: Sequence[float], trial: Sequence[float], mean: float, shape: float) -> tuple[float, ...]:
    """Costs of the winner at increasing `orders`; shape infinity is the Poisson distribution.

    >>> orders = tuple(range(2, 65))
    >>> one = [order * 0.005 for order in orders]  # Gaussian noise of multiplier 10
    >>> [round(cost, 3) for cost in _of_the_winner(orders, one, 10.0, 1.0)[:2]]
    [0.639, 0.639]
    """
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


def _basic(event: DpEvent, orders: tuple[float, ...]) -> Costs:
    costs = _of_the_library(event, orders)
    missing = ~np.isfinite(costs)
    if missing.any():
        costs[missing] = _of_the_library(event, tuple(float(math.ceil(a)) for a in np.array(orders)[missing]))
    raised: Costs = (np.maximum(costs, 0) + _slack(event, np.array(orders))) * _UP
    return raised


def _slack(event: DpEvent, orders: Costs) -> Costs:
    """A bound on the rounding error of the library's cost."""
    if type(event) is PoissonSampledDpEvent:
        # Its binomial coefficients are differences of logarithms of factorials, which are rounded at their own size.
        factorials = np.where(orders > ORDERS[-1], gammaln(orders + 1) * 2.0**-52, 0.0)
        return np.maximum(1e-11, factorials) / (orders - 1)
    if type(event) is LaplaceDpEvent:
        return float(1e-14 / event.noise_multiplier) * (1 + 1 / (orders - 1))
    return np.zeros(len(orders))


def _of_the_library(event: DpEvent, orders: tuple[float, ...]) -> Costs:
    accountant = RdpAccountant(orders, NeighboringRelation.ADD_OR_REMOVE_ONE)
    with np.errstate(all="ignore"):
        try:
            accountant.compose(SelfComposedDpEvent(event, 1))
        except (ArithmeticError, ValueError) as error:
            raise EventError(f"a {type(event).__name__} has no Renyi cost ({error}): use more noise.") from None
    return np.asarray(accountant.rdp, dtype=np.float64)


def _discount(order: float, delta: float) -> float:
    """What the conversion takes off a Renyi cost; negative at low orders."""
    return (math.log(delta) + math.log(order)) / (order - 1) - math.log1p(-1 / order)


@lru_cache(maxsize=64)
def _checked(orders: tuple[float, ...]) -> tuple[float, ...]:
    for order in orders:
        if isinstance(order, bool) or not isinstance(order, int | float) or not 1 < order <= _MOST_ORDER:
            raise ConfigError(f"order is {order!r}: give a number above 1 and at most {_MOST_ORDER:g}.")
    return tuple(map(float, orders))
