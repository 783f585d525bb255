"""What a list of events costs at a given delta, by one of three accountants, always under add-or-remove-one.

- `gdp`: exact, for Gaussian events only; the rule by which the ledger admits charges.
- `rdp`: Renyi orders by dp-accounting; takes every kind of event; an upper bound.
- `pld`: numerical privacy loss distributions by dp-accounting; tight, but a claim only for a plan fixed in advance.

Multipliers are normalised by the sensitivity before they get here, so the relation handed to dp-accounting is always
ADD_OR_REMOVE_ONE (its RDP accountant forgets a factor 2 under REPLACE_ONE). Each call builds a fresh accountant: an
exception inside one can wipe what it had summed before.

>>> from dp_accounting import SelfComposedDpEvent
>>> round(epsilon([SelfComposedDpEvent(GaussianDpEvent(10.0), 100)], 1e-6), 3)
4.887
"""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from dp_accounting import NeighboringRelation, PrivacyAccountant, UnsupportedEventError
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, NonPrivateDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from rayprivacy.accounting.events import leaves, validate
from rayprivacy.accounting.gaussian import epsilon_of
from rayprivacy.core.errors import ConfigError, EventError

AccountantName = Literal["gdp", "rdp", "pld"]
PLD_SIGMA_FLOOR = 0.05  # below it the loss distribution takes hours and gigabytes


def gdp_mu_squared(event: DpEvent) -> float:
    """The mu^2 of a composition of Gaussian events: the sum of 1 / sigma^2.

    Raises:
        EventError: the event is invalid, or something in it is not plain Gaussian noise.
    """
    validate(event)
    return math.fsum(_mu_squared(leaf) * times for leaf, times in leaves(event))


def total_mu_squared(events: Iterable[DpEvent]) -> float:
    """The mu^2 of all events together, correctly rounded whatever their order."""
    return math.fsum(gdp_mu_squared(event) for event in events)


def epsilon(events: Sequence[DpEvent], delta: float, accountant: AccountantName = "gdp") -> float:
    """The epsilon that the events cost together at `delta`; infinite when one of them is non-private.

    Raises:
        EventError: an event is invalid, or the accountant cannot compose it.
        ConfigError: delta is outside (0, 1), or the accountant is unknown.
    """
    if accountant == "gdp":
        return epsilon_of(math.sqrt(total_mu_squared(events)), delta)
    if not 0 < delta < 1:
        raise ConfigError(f"delta is {delta}: give a number between 0 and 1, e.g. 1e-6.")
    for event in events:
        validate(event)
    if any(type(leaf) is NonPrivateDpEvent for event in events for leaf, _ in leaves(event)):
        return math.inf
    fresh = _accountant(accountant, events)
    try:
        for event in events:
            fresh.compose(event)
    except UnsupportedEventError:
        raise EventError(f"accountant {accountant!r} cannot compose one of the events: use 'rdp'.") from None
    return float(fresh.get_epsilon(delta))


def _mu_squared(leaf: DpEvent) -> float:
    if type(leaf) is not GaussianDpEvent:
        raise EventError(f"the event holds a {type(leaf).__name__}: composition 'gdp' takes Gaussian events only.")
    mu = 1 / float(leaf.noise_multiplier)
    return mu * mu


def _accountant(name: str, events: Sequence[DpEvent]) -> PrivacyAccountant:
    if name == "rdp":
        return RdpAccountant(neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    if name == "pld":
        _check_pld(events)
        return PLDAccountant(neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    raise ConfigError(f"accountant is {name!r}: use 'gdp', 'rdp' or 'pld'.")


def _check_pld(events: Sequence[DpEvent]) -> None:
    for leaf, times in (pair for event in events for pair in leaves(event)):
        sampled = type(leaf) is PoissonSampledDpEvent
        sigma = leaf.event.noise_multiplier if sampled else getattr(leaf, "noise_multiplier", math.inf)
        if type(leaf) is GaussianDpEvent:
            sigma /= math.sqrt(times)  # n Gaussians are one Gaussian with sqrt(n) times less noise
        if sigma <= PLD_SIGMA_FLOOR:
            raise EventError(f"an event has noise multiplier {sigma:g}: 'pld' needs more than {PLD_SIGMA_FLOOR}.")
