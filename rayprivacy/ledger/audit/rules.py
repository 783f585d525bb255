"""Admission as the auditor sees it: a cost per charge, a limit per account.

Every cost is an integer in units of 2^-80, so that sums are exact. What the limit means depends on the composition:

    gdp       sum of 1/sigma^2  <= 1/s^2, s the noise at which dp_accounting's Gaussian curve meets (epsilon, delta)
    zcdp      sum of rho        <= max over a of (epsilon - log((a-1)/a) + (log delta + log a)/(a-1)) / a
    rdp       sum at order a    <= epsilon - log((a-1)/a) + (log delta + log a)/(a-1)
    metric    sum of epsilons   <= epsilon

The zCDP line is the conversion of Canonne, Kamath & Steinke solved for rho: a cap holds when it holds at one order, and
at a given order it is linear in rho. `plan` holds the rule of composition pld, which counts instead.
"""

import math
from fractions import Fraction
from typing import Protocol

import numpy as np
from dp_accounting import get_sigma_gaussian

from rayprivacy.ledger.audit import prices, strict
from rayprivacy.ledger.audit.events import read_leaves
from rayprivacy.ledger.audit.terms import Terms

UNIT = 2**80
SLACK = {"gdp": 1e-6, "zcdp": 1e-4, "rdp": 1e-6, "metric": 1e-9}
_ALPHAS = 1 + np.logspace(-9, 12, 40001)

Vector = tuple[int, ...]


class Rule(Protocol):
    """What the replay asks of a composition rule; `size` is the length of its vectors."""

    @property
    def size(self) -> int:
        """Length of a cost vector."""

    def check_cost(self, events: str, cost: Vector, where: str) -> None:
        """Refuse a recorded cost that is not what the event costs."""

    def pays(self, events: str, cost: Vector, where: str) -> bool | None:
        """Whether a charge of this cost pays for an event as well; None where that hangs on rounding."""

    def fits(self, live: Vector) -> bool:
        """Whether the cap holds with these live sums."""

    def left(self, live: Vector) -> list[float]:
        """What remains of each limit, in its own units."""


class SumRule:
    """The rule of every composition but pld: one sum of costs, and one limit."""

    size = 1

    def __init__(self, terms: Terms, where: str) -> None:
        self._composition = terms.composition
        self._pricing = _pricing(terms)
        self._limit = _limit(terms, terms.epsilon, where)
        self._slack_limit = _limit(terms, terms.epsilon * (1 + SLACK[terms.composition]), where)
        self._known: dict[str, tuple[int, int]] = {}

    def check_cost(self, events: str, cost: Vector, where: str) -> None:
        """Refuse a cost below the price or clearly above it."""
        if events not in self._known:
            self._known[events] = self._bounds(events, where)
        low, high = self._known[events]
        if len(cost) != 1 or not low <= cost[0] <= high:
            strict.fail(where, "records a cost that is not what its event costs")

    def pays(self, events: str, cost: Vector, where: str) -> bool | None:
        """Whether the price is not above the cost."""
        bounds = self._price(events, where)
        if bounds is None or cost[0] < bounds[0]:
            return False
        return True if cost[0] >= bounds[1] else None

    def fits(self, live: Vector) -> bool:
        """Whether the sum is within the limit."""
        return live[0] <= self._slack_limit

    def left(self, live: Vector) -> list[float]:
        """Limit less sum, not below 0."""
        return [max(0, self._limit - live[0]) / UNIT]

    def _bounds(self, events: str, where: str) -> tuple[int, int]:
        found = self._price(events, where)
        if found is None:
            strict.fail(where, f"holds an event that composition '{self._composition}' does not take")
        return found

    def _price(self, events: str, where: str) -> tuple[int, int] | None:
        """The least and the most that an event may cost; None where the rule does not take it."""
        found = prices.price(read_leaves(events, where), self._pricing)
        if found is None:
            return None
        low, high = Fraction(found[0]) * (1 - Fraction(1, 10**9)), Fraction(found[1]) * (1 + Fraction(1, 10**6))
        return math.ceil(low * UNIT), math.ceil((high + Fraction(1, 2**70)) * UNIT)


def _pricing(terms: Terms) -> prices.Pricing:
    if terms.composition == "rdp":
        return prices.renyi(terms.order)
    return {"gdp": prices.mu_squared, "zcdp": prices.rho, "metric": prices.metric}[terms.composition]


def _limit(terms: Terms, epsilon: float, where: str) -> int:
    with np.errstate(all="ignore"):
        try:
            return math.floor(Fraction(_real_limit(terms, epsilon)) * UNIT)
        except (ArithmeticError, ValueError, RuntimeError):
            strict.fail(where, "states a cap that no formula here can check")


def _real_limit(terms: Terms, epsilon: float) -> float:
    if terms.composition == "gdp":
        return math.pow(get_sigma_gaussian(epsilon, terms.delta), -2.0)
    if terms.composition == "zcdp":
        gains = (np.log(terms.delta) + np.log(_ALPHAS)) / (_ALPHAS - 1) - np.log1p(-1 / _ALPHAS)
        return float(np.max((epsilon + gains) / _ALPHAS))
    if terms.composition == "rdp":
        order, log_delta = terms.order, math.log(terms.delta)
        return epsilon - math.log((order - 1) / order) + (log_delta + math.log(order)) / (order - 1)
    return epsilon
