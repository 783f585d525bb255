"""How well scores tell members from others, and how well they may, given a claim.

Few members found with certainty are a worse leak than many found a little better than by chance, so the rate of hits is
read at small rates of false alarms (Carlini et al. 2022), with Clopper-Pearson intervals. Beside each stands the
greatest rate that the claimed (epsilon, delta) admits, at the highest rate of false alarms that the others leave room
for: of 130 others none may be above a threshold that one in a hundred is above.

>>> members, others = np.array([3.0, 2.0, 1.0]), np.array([2.5, 0.5, 0.0])
>>> round(auc(members, others), 3)
0.778
>>> operating_points(members, others, rates=(0.34,))[0].hits
3
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from rayprivacy.auditing.bounds import Counts, clopper_pearson
from rayprivacy.auditing.profile import Profile
from rayprivacy.core.errors import ConfigError

Array = npt.NDArray[np.float64]
RATES = (0.001, 0.01, 0.1)


@dataclass(frozen=True)
class Point:
    """One threshold.

    Attributes:
        rate: of false alarms that was asked for; the measured rate is at most this.
        hits: members above the threshold.
        members: how many there are.
        false_alarms: others above the threshold.
        others: how many there are.
    """

    rate: float
    hits: int
    members: int
    false_alarms: int
    others: int

    @property
    def hit_rate(self) -> float:
        """The share of members above the threshold."""
        return self.hits / self.members

    @property
    def interval(self) -> tuple[float, float]:
        """The Clopper-Pearson interval of the rate of hits, at 95 percent, for a threshold that is given."""
        return clopper_pearson(self.hits, self.members)

    @property
    def counts(self) -> Counts:
        """The same as counts in two worlds."""
        return Counts(self.hits, self.members, self.false_alarms, self.others)

    @property
    def most_false_alarms(self) -> float:
        """The upper end of the Clopper-Pearson interval of the rate of false alarms, at 95 percent."""
        return clopper_pearson(self.false_alarms, self.others)[1]

    def admitted(self, claim: Profile) -> float:
        """The greatest rate of hits that a claim admits, at the upper end of the false alarms that were measured."""
        return claim.most_hits(max(self.rate, self.most_false_alarms))


def auc(members: Array, others: Array) -> float:
    """The chance that a member's score is above another's, equal scores counting half.

    Raises:
        ConfigError: there are no members, or no others.
    """
    _check(members, others)
    placed = stats.rankdata(np.concatenate([members, others]))[: len(members)]
    return float((placed.sum() / len(members) - (len(members) + 1) / 2) / len(others))


def auc_interval(members: Array, others: Array, confidence: float = 0.95) -> tuple[float, float]:
    """The interval of Hanley & McNeil (1982) around the AUC, cut to [0, 1]; approximate, and for large samples.

    Raises:
        ConfigError: there are no members, or no others.
    """
    area = auc(members, others)
    first, second = area / (2 - area), 2 * area**2 / (1 + area)
    m, n = len(members), len(others)
    variance = (area * (1 - area) + (m - 1) * (first - area**2) + (n - 1) * (second - area**2)) / (m * n)
    reach = float(stats.norm.isf((1 - confidence) / 2)) * max(0.0, variance) ** 0.5
    return max(0.0, area - reach), min(1.0, area + reach)


def curve(members: Array, others: Array) -> tuple[Array, Array]:
    """The ROC curve: rates of false alarms and of hits at every threshold, from (0, 0) to (1, 1).

    Raises:
        ConfigError: there are no members, or no others.
    """
    _check(members, others)
    thresholds = np.unique(np.concatenate([members, others]))[::-1]
    rates = [np.searchsorted(np.sort(-scores), -thresholds, side="right") / len(scores) for scores in (others, members)]
    return np.append(0.0, rates[0]), np.append(0.0, rates[1])


def operating_points(members: Array, others: Array, rates: Sequence[float] = RATES) -> list[Point]:
    """The rate of hits at the lowest threshold that keeps false alarms within each rate.

    With fewer than 1 / rate others no false alarm is allowed, and only members above all others count.

    Raises:
        ConfigError: there are no members, or no others, or a rate is outside (0, 1).
    """
    _check(members, others)
    descending = np.sort(others)[::-1]
    found = []
    for rate in rates:
        if not 0 < rate < 1:
            raise ConfigError(f"a rate of false alarms is {rate}: give a number between 0 and 1, e.g. 0.01.")
        allowed = int(rate * len(others) + 1e-9)
        threshold = descending[allowed]  # scores above it: at most `allowed` of the others
        hits, false = int((members > threshold).sum()), int((others > threshold).sum())
        found.append(Point(rate, hits, len(members), false, len(others)))
    return found


def _check(members: Array, others: Array) -> None:
    if not (len(members) and len(others)):
        raise ConfigError(f"there are {len(members)} members and {len(others)} others: give some of both.")
