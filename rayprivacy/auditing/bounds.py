"""Lower bounds on epsilon from counts of an attack's hits and false alarms, and what a claim allows an attacker.

The same mechanism runs many times on two neighbouring corpora, and an attacker says after each run whether the secret
was there. A *hit* is a yes with the secret, a *false alarm* a yes without. Clopper & Pearson (1934) bound both rates,
each with half of the allowed error; a claim (epsilon, delta) is refuted where even the cautious ends break its bound,

    least hits - exp(epsilon) * most false alarms > delta            (or the same with the worlds swapped).

The runs must be independent, and the attack fixed before they are looked at. One pair of intervals then serves every
point of a privacy profile and both directions: on the event that both intervals hold, which has the stated confidence,
all comparisons are right at once, so the grid of epsilons costs nothing. Several attacks (thresholds, say) are several
pairs of intervals, and share the error between them (Bonferroni).

Source of the epsilon bound: Jagielski, Ullman & Oprea 2020.

>>> counts = Counts(hits=900, with_secret=1000, false_alarms=100, without_secret=1000)
>>> round(epsilon_lower_bound(counts, delta=1e-5, confidence=0.95), 2)
1.99
>>> compare(Profile.claimed(1.0, 1e-5), [counts]).flagged
True

A mechanism that is (epsilon, delta)-differentially private binds every attack that tells two neighbouring corpora
apart (Wasserman & Zhou 2010; Kairouz, Oh & Viswanath 2015), in both directions:

    hits <= exp(epsilon) * false alarms + delta        1 - false alarms <= exp(epsilon) * (1 - hits) + delta

One mechanism has many such pairs: its privacy *profile*. A certificate states one of them; the events have a whole
curve, which is what an audit should test: a single point with a tiny delta can hide noise that is much too small.

>>> Profile.claimed(0.0, 0.25).most_hits(0.5)
0.75
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from dp_accounting.dp_event import DpEvent
from scipy import stats

from rayprivacy.accounting.accountant import AccountantName, epsilon
from rayprivacy.core.errors import ConfigError

CONFIDENCE = 0.999  # of "flagged": a correct run is accused once in a thousand times, or less
# Fixed in advance and the same for every run. An audit of a few thousand trials sees nothing below 1e-4.
DELTAS = (1e-4, 1e-3, 0.01, 0.03, 0.06, *(step / 20 for step in range(2, 20)))


@dataclass(frozen=True)
class Profile:
    """Points (epsilon, delta) of a privacy profile, each of which the mechanism claims to satisfy."""

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise ConfigError("a profile has no point: give at least one pair of epsilon and delta.")
        for eps, delta in self.points:
            if not (eps >= 0 and 0 <= delta < 1):
                raise ConfigError(f"the profile holds epsilon {eps} and delta {delta}: epsilon >= 0, 0 <= delta < 1.")

    @classmethod
    def of(cls, events: Sequence[DpEvent], accountant: AccountantName = "pld") -> "Profile":
        """The profile of events together, at fixed deltas; `rdp` takes every central event, and is not tight."""
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
    return min(forward, 1 - math.exp(-eps) * max(0.0, 1 - delta - false_alarms))


@dataclass(frozen=True)
class Counts:
    """How often an attacker said yes in each world: hits of the runs with the secret, false alarms of those without."""

    hits: int
    with_secret: int
    false_alarms: int
    without_secret: int

    def __post_init__(self) -> None:
        _check_counts("hits", self.hits, self.with_secret)
        _check_counts("false_alarms", self.false_alarms, self.without_secret)


@dataclass(frozen=True)
class Finding:
    """Counts beside a claim: `flagged` if some attack does better than it admits (a correct run is not, with chance
    `confidence`); `excess` is the largest least hits - exp(epsilon) * most false alarms - delta over the profile.
    """

    flagged: bool
    excess: float
    epsilon: float
    delta: float
    confidence: float


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """An interval that holds the true rate with at least this confidence, whatever the rate is."""
    _check_counts("successes", successes, trials)
    return _interval(successes, trials, (1 - _checked_confidence(confidence)) / 2)


def counts_at(
    threshold: float, with_secret: npt.NDArray[np.float64], without_secret: npt.NDArray[np.float64]
) -> Counts:
    """Counts of the attack that says yes when its score is above a threshold fixed beforehand."""
    hits, false_alarms = (int((scores > threshold).sum()) for scores in (with_secret, without_secret))
    return Counts(hits, len(with_secret), false_alarms, len(without_secret))


def epsilon_lower_bound(counts: Counts, delta: float, confidence: float = 0.95) -> float:
    """An epsilon that the mechanism exceeds or meets at `delta`, with this confidence; 0 when nothing was shown."""
    if not 0 <= delta < 1:
        raise ConfigError(f"delta is {delta}: give a number from 0 up to 1, e.g. 1e-5.")
    best = 0.0
    for least_hits, most_false in _both_ways(counts, 1 - _checked_confidence(confidence)):
        if least_hits > delta and most_false > 0:
            best = max(best, math.log((least_hits - delta) / most_false))
    return best


def compare(profile: Profile, attacks: Sequence[Counts], confidence: float = CONFIDENCE) -> Finding:
    """Whether some attack, all of them chosen before the runs, does better than every point of the profile admits."""
    if not attacks:
        raise ConfigError("attacks is empty: give the counts of at least one.")
    error = (1 - _checked_confidence(confidence)) / len(attacks)
    ends = [pair for counts in attacks for pair in _both_ways(counts, error)]
    excess, eps, delta = max(
        (least_hits - math.exp(min(eps, 700)) * most_false - delta, eps, delta)
        for eps, delta in profile.points
        for least_hits, most_false in ends
    )
    return Finding(excess > 0, excess, eps, delta, confidence)


def _both_ways(counts: Counts, error: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Least hits and most false alarms, and the same for the attacker who says no instead; wrong with chance error."""
    least_hits = _interval(counts.hits, counts.with_secret, error / 2)[0]
    most_false = _interval(counts.false_alarms, counts.without_secret, error / 2)[1]
    return (least_hits, most_false), (1 - most_false, 1 - least_hits)


def _interval(successes: int, trials: int, tail: float) -> tuple[float, float]:
    """Both ends, each wrong with a chance of at most `tail`."""
    low = float(stats.beta.ppf(tail, successes, trials - successes + 1)) if successes else 0.0
    high = float(stats.beta.isf(tail, successes + 1, trials - successes)) if successes < trials else 1.0
    return low, high


def _check_counts(name: str, successes: int, trials: int) -> None:
    if trials < 1 or not 0 <= successes <= trials:
        raise ConfigError(f"{name} is {successes} of {trials} runs: give a number from 0 to the runs, at least one.")


def _checked_confidence(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence is {confidence}: give a number between 0 and 1, e.g. 0.95.")
    return confidence
