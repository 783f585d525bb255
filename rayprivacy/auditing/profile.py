"""What a claim allows an attacker: the privacy profile of a list of events, as points (epsilon, delta).

A mechanism that is (epsilon, delta)-differentially private binds every attack that tells two neighbouring corpora
apart (Wasserman & Zhou 2010; Kairouz, Oh & Viswanath 2015), in both directions:

    hits <= exp(epsilon) * false alarms + delta        1 - false alarms <= exp(epsilon) * (1 - hits) + delta

One mechanism has many such pairs. A certificate states one of them; the events have a whole curve, which is what an
audit should test: a single point with a tiny delta can hide noise that is much too small.

>>> from dp_accounting.dp_event import GaussianDpEvent
>>> profile = Profile.of([GaussianDpEvent(1.0)])
>>> round(profile.most_hits(0.3), 2)
0.68
>>> Profile.claimed(0.0, 0.25).most_hits(0.5)
0.75
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting.accountant import AccountantName, epsilon
from rayprivacy.core.errors import ConfigError

# Fixed in advance and the same for every run. An audit of a few thousand trials sees nothing below 1e-4.
DELTAS = (1e-4, 1e-3, 0.01, 0.03, 0.06, *(step / 20 for step in range(2, 20)))


@dataclass(frozen=True)
class Profile:
    """Points of a privacy profile.

    Attributes:
        points: pairs (epsilon, delta), each of which the mechanism claims to satisfy.

    Raises:
        ConfigError: there is no point, or one is out of range.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise ConfigError("a profile has no point: give at least one pair of epsilon and delta.")
        for eps, delta in self.points:
            if not (eps >= 0 and 0 <= delta < 1):
                raise ConfigError(f"the profile holds epsilon {eps} and delta {delta}: epsilon >= 0, 0 <= delta < 1.")

    @classmethod
    def of(cls, events: Sequence[DpEvent], accountant: AccountantName = "pld") -> "Profile":
        """The profile of events together, at the fixed deltas `DELTAS`.

        Args:
            events: what the run claims to have done.
            accountant: `pld` is tight; `rdp` takes every central event, and is an upper bound.

        Raises:
            EventError: the accountant cannot compose an event.
        """
        return cls(tuple((epsilon(events, delta, accountant), delta) for delta in DELTAS))

    @classmethod
    def claimed(cls, epsilon: float, delta: float) -> "Profile":
        """The single pair that a certificate states."""
        return cls(((epsilon, delta),))

    def most_hits(self, false_alarms: float) -> float:
        """The greatest rate of hits that the claim admits at a rate of false alarms; at most 1."""
        return min(1.0, min(_most_hits(eps, delta, false_alarms) for eps, delta in self.points))


def _most_hits(eps: float, delta: float, false_alarms: float) -> float:
    # exp(epsilon) overflows long after the bound has become trivial.
    forward = 1.0 if eps > 700 else delta + math.exp(eps) * false_alarms
    backward = 1 - math.exp(-eps) * max(0.0, 1 - delta - false_alarms)
    return min(forward, backward)
