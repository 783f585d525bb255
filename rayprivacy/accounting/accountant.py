"""What a list of events costs at a given delta, by one of three accountants, always under add-or-remove-one.

- `gdp`: exact, for Gaussian events only; a rule by which the ledger admits charges.
- `rdp`: Renyi orders; takes every central event but mixtures; an upper bound.
- `pld`: numerical privacy loss distributions; tight, but a claim only for a plan fixed in advance.

Multipliers are normalised by the sensitivity before they get here, so the relation handed to dp-accounting is always
ADD_OR_REMOVE_ONE (its RDP accountant forgets a factor 2 under REPLACE_ONE). Nothing is kept between calls: an exception
inside an accountant can wipe what it had summed before. No accountant takes metric local privacy.

>>> from dp_accounting import SelfComposedDpEvent
>>> round(epsilon([SelfComposedDpEvent(GaussianDpEvent(10.0), 100)], 1e-6), 3)
4.887
"""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Literal

import numpy as np
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, NonPrivateDpEvent

from rayprivacy.accounting.events import from_json, leaves, to_json
from rayprivacy.accounting.exact import round_up, total
from rayprivacy.accounting.gaussian import epsilon_of
from rayprivacy.accounting.loss import pld_epsilon
from rayprivacy.accounting.metric import MetricLocalDpEvent
from rayprivacy.accounting.renyi import ORDERS, epsilon_at, rdp
from rayprivacy.core.errors import ConfigError, EventError

AccountantName = Literal["gdp", "rdp", "pld"]


def gdp_cost(event: DpEvent) -> Fraction:
    """The exact mu^2 of a composition of Gaussian events: the sum of count / sigma^2, sigma being the exact float.

    Raises:
        EventError: the event is invalid, or something in it is not plain Gaussian noise.
    """
    return total([_mu_squared(leaf) * times for leaf, times in leaves(from_json(to_json(event)))])


def gdp_mu_squared(event: DpEvent) -> float:
    """`gdp_cost` as a float, rounded up.

    Raises:
        EventError: as `gdp_cost`.
    """
    return round_up(gdp_cost(event))


def total_mu_squared(events: Iterable[DpEvent]) -> float:
    """The mu^2 of all events together, rounded up, whatever their order."""
    return round_up(total([gdp_cost(event) for event in events]))


def epsilon(events: Sequence[DpEvent], delta: float, accountant: AccountantName = "gdp") -> float:
    """The epsilon that the events cost together at `delta`; infinite when one of them is non-private.

    Raises:
        EventError: an event is invalid, or the accountant cannot compose it.
        ConfigError: delta is outside (0, 1), or the accountant is unknown.
    """
    if accountant not in ("gdp", "rdp", "pld"):
        raise ConfigError(f"accountant is {accountant!r}: use 'gdp', 'rdp' or 'pld'.")
    if not 0 < delta < 1:
        raise ConfigError(f"delta is {delta}: give a number between 0 and 1, e.g. 1e-6.")
    lines = [pair for event in events for pair in leaves(from_json(to_json(event)))]
    if any(type(leaf) is MetricLocalDpEvent for leaf, _ in lines):
        raise EventError("a metric-local event is no central guarantee: no accountant composes it.")
    if any(type(leaf) is NonPrivateDpEvent for leaf, _ in lines):
        return math.inf
    if accountant == "gdp":
        return epsilon_of(math.sqrt(total_mu_squared(events)), delta)
    return pld_epsilon(lines, delta) if accountant == "pld" else _rdp_epsilon(events, delta)


def _rdp_epsilon(events: Sequence[DpEvent], delta: float) -> float:
    if not events:
        return 0.0
    costs = np.sum([rdp(event) for event in events], axis=0).tolist()
    return min(epsilon_at(cost, order, delta) for order, cost in zip(ORDERS, costs, strict=True))


def _mu_squared(leaf: DpEvent) -> Fraction:
    if type(leaf) is not GaussianDpEvent:
        raise EventError(f"the event holds a {type(leaf).__name__}: composition 'gdp' takes Gaussian events only.")
    return 1 / Fraction(leaf.noise_multiplier) ** 2
