"""Figures that may be shown: what units hand in for them, and what noisy sums of that say.

A unit (a user, or a record) hands in one vector: a 1 for the count of units, and for each figure some coordinates,

- a mean of a number between two public bounds: -1 for the lower one, 0 half-way, 1 for the upper one;
- shares of its texts by public cells, of which a total variation is made: the shares themselves.

Either is no longer than 1 in L2: shares are at least 0 and add up to 1. Each is multiplied by a public weight, and all
by one over the root of the sum of the squared weights, so that the vector is no longer than 1. The release does not
rely on that: it bounds what it is given (`release.figure_vectors`). What is not finite counts as the upper bound; units
without texts have no shares.

Where losses are measured, a unit with less text than `WHOLE` tokens counts in part: its vector is multiplied by its
tokens over these, and a loss is bounded after that. The noise is as wide as the bounds are, and the mean loss of "ok"
may be anything: bounds that hold such losses would be twice as wide, and narrow ones would cut them off (chat, 4 nats
between the bounds: 0.24 nats of bias where all users count as one, and 0.02 where they count by their text).

Intervals say what the noise may have done: they hold, with a probability of 95%, the figure of these units
without noise. How other users would score is not in them.

- A mean is a ratio of two noisy sums, and its interval is Fieller's (1954): all ratios r for which A - r N, whose noise
  is normal with the variance a^2 + r^2 n^2, lies within 1.96 standard deviations of 0.
- A total variation is made of the shares nearest to the noisy ones. By the triangle inequality it is no further from
  the one without noise than the two sets of shares are from each other. How far that is, is found by drawing the noise
  again from a public seed: the interval reaches to what 95% of the draws stay below.

A figure is left out where its interval is wider than a public bound: then it would say more about the noise than about
the text. That is decided by the noisy sums alone, and so by noise, too: the intervals of figures that only noise has
brought above the bound hold less often.

>>> layout = Layout((Mean("copied", 1.0),))
>>> vector = layout.vector([0.25])
>>> round(float(np.linalg.norm(vector)), 3), vector.round(3).tolist()
(0.632, [0.447, -0.447])
>>> layout.read(100 * vector, 0.1)[0][1].value
0.25
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rayprivacy.evaluation.fidelity import total_variation
from rayprivacy.release.histogram import nearest_shares

COUNT = 0.5  # weight of the count of units
WHOLE = 24  # tokens with which a unit counts as a whole one
REMEDY = "raise corpus.holdout or figures.share, or name fewer figures (figures.of)"
_Z = 1.959964
_CLEAR = 3.0  # standard deviations of its noise that a count is above zero, or nothing is shown
_DRAWS, _SEED, _LEVEL = 200, 0, 0.95
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Shown:
    """A released figure, with the ends of its interval."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Mean:
    """The mean over units of a number between `least` and `most`, which are public."""

    name: str
    weight: float
    least: float = 0.0
    most: float = 1.0
    widest: float = 0.15  # half an interval is at most so wide where the figure is shown
    cells: int = field(default=1, init=False)

    def counted(self, value: Any) -> float:
        """As how much of a unit one with this value counts, at most."""
        return 1.0

    def coordinates(self, value: Any, counted: float) -> _Floats:
        """What a unit hands in, between -1 and 1."""
        place = counted * (2 * (value - self.least) / (self.most - self.least) - 1)
        return np.array([min(max(place, -1.0), 1.0) if math.isfinite(place) else 1.0])

    def read(self, sums: _Floats, std: float, units: float, std_of_units: float) -> tuple[Shown, float]:
        """The mean from the noisy sum of coordinates and the noisy count of units, and half its interval's width."""
        ratio, (low, high) = float(sums[0]) / units, _fieller((float(sums[0]), std), (units, std_of_units))
        width = self.most - self.least
        within = (self.least + (min(max(each, -1.0), 1.0) + 1) / 2 * width for each in (ratio, low, high))
        return self._shown(*within), (high - low) / 4 * width

    def _shown(self, value: float, low: float, high: float) -> Shown:
        return Shown(self.name, value, low, high)


@dataclass(frozen=True)
class Perplexity(Mean):
    """The exponential of a mean loss in nats per token; the width of its interval is measured in nats.

    A value is what all of a unit's text loses, and its tokens.
    """

    widest: float = 0.25

    def counted(self, value: Any) -> float:
        """As how much of a unit one with so many tokens counts."""
        return min(float(value[1]) / WHOLE, 1.0)

    def coordinates(self, value: Any, counted: float) -> _Floats:
        """What a unit hands in, between -1 and 1."""
        return super().coordinates(value[0] / value[1], counted)

    def _shown(self, value: float, low: float, high: float) -> Shown:
        return Shown(self.name, math.exp(value), math.exp(low), math.exp(high))


@dataclass(frozen=True)
class Distance:
    """The total variation from public shares, those of synthetic text, to the mean of the units' shares."""

    name: str
    weight: float
    shares: tuple[float, ...]  # of synthetic text
    widest: float = 0.15

    @property
    def cells(self) -> int:
        """How many coordinates it takes."""
        return len(self.shares)

    def counted(self, value: Any) -> float:
        """As how much of a unit any counts."""
        return 1.0

    def coordinates(self, value: npt.ArrayLike, counted: float) -> _Floats:
        """What a unit hands in, from whole numbers of its texts by cell: their shares."""
        counts = np.asarray(value, np.float64)
        return np.asarray(counted * counts / max(counts.sum(), 1.0), np.float64)

    def read(self, sums: _Floats, std: float, units: float, std_of_units: float) -> tuple[Shown, float]:
        """The distance from the noisy sums of shares, which add up to the number of units but for the noise; and half
        its interval's width.
        """
        shares, noise = nearest_shares(sums), np.random.default_rng(_SEED).normal(0, std, (_DRAWS, self.cells))
        total = max(float(sums.sum()), std)
        moved = [total_variation(nearest_shares(shares * total + each), shares) for each in noise]
        found, half = total_variation(shares, self.shares), float(np.quantile(moved, _LEVEL))
        return Shown(self.name, found, max(found - half, 0.0), min(found + half, 1.0)), half


Part = Mean | Distance


@dataclass(frozen=True)
class Layout:
    """The figures of one release, in the order of their coordinates; the count of units is the first of all."""

    parts: tuple[Part, ...]
    who: str = "users"  # the units that are asked

    @property
    def cells(self) -> int:
        """How long a vector is."""
        return 1 + sum(part.cells for part in self.parts)

    @property
    def described(self) -> list[Any]:
        """All that makes up a vector, as JSON values."""
        bounds = [[getattr(part, name, None) for name in ("least", "most")] for part in self.parts]
        return [COUNT, WHOLE, [[part.name, part.weight, part.cells] for part in self.parts], bounds]

    def vector(self, values: Sequence[Any]) -> _Floats:
        """The vector [cells] of a unit, from its values of all figures; no longer than 1 in L2."""
        given = [*zip(self.parts, values, strict=True)]
        counted = min((part.counted(value) for part, value in given), default=1.0)
        parts = (part.weight * part.coordinates(value, counted) for part, value in given)
        return np.asarray(np.concatenate([[COUNT * counted], *parts]) / self._norm, np.float64)

    def read(self, sums: _Floats, std: float) -> tuple[list[Shown], list[str]]:
        """The figures that noisy sums [cells] show, and sentences on those that are left out; `std` is their noise."""
        scale = self._norm / COUNT
        units, noise = float(sums[0]) * scale, std * scale
        if units < _CLEAR * noise:
            return [], [f"Figures of {self.who} are left out: noise hides how many there are."]
        low, high = max(units - _Z * noise, 0.0), units + _Z * noise
        in_part = ", those with little text in part" if any(isinstance(part, Perplexity) for part in self.parts) else ""
        shown, left_out, at = [Shown(self.who + in_part, round(units), low, high)], list[str](), 1
        for part in self.parts:
            scale, own = self._norm / part.weight, sums[at : at + part.cells]
            at += part.cells
            found, half = part.read(own * scale, std * scale, units, noise)
            if half <= part.widest:
                shown.append(replace(found, name=f"{part.name}, {self.who}"))
            else:
                left_out.append(f"{part.name} is left out: noise alone may move it by more than {part.widest:g}.")
        return shown, left_out

    @property
    def _norm(self) -> float:
        return math.sqrt(COUNT**2 + sum(part.weight**2 for part in self.parts))


def _fieller(above: tuple[float, float], below: tuple[float, float]) -> tuple[float, float]:
    """The ends of the interval of a ratio of two numbers, each with the standard deviation of its noise.

    The lower number is further from 0 than 1.96 standard deviations.
    """
    (a, std_a), (n, std_n) = above, below
    slack = n * n - (_Z * std_n) ** 2
    root = _Z * math.sqrt(max((a * std_n) ** 2 + (n * std_a) ** 2 - (_Z * std_a * std_n) ** 2, 0.0))
    return (a * n - root) / slack, (a * n + root) / slack
