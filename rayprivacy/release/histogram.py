"""Shares of the units' records: a histogram over combinations of public label values, or margins of several partitions.

A language model that writes behind control codes (Yue et al., ACL 2023) must know how often to use each code, and that
is private. Each unit hands in its own histogram divided by its number of records, so that a user with many records
weighs no more than one with few. A user with n records, c_i of them in cell i, contributes to cell i, on the grid of
2^-20,

    v_i = floor(2^20 * c_i / n),     computed with integers alone.

The v_i are at least 0 and add up to at most 2^20, and the L2 norm of such a vector is at most its sum: adding or
removing one unit moves the sums by at most 2^20 in L2, rounding included. So

    sensitivity (L2) = 2^20 exactly,     noise std = sigma * 2^20 in each cell,     event = one Gaussian(sigma)

Rounding down is what makes the bound exact: rounded to the nearest step, the v_i could exceed it by half a step for
each cell. The price is less than one part in a million of a unit per cell. A unit without records contributes zero, and
so does a row that holds no counts (a negative or absurdly large entry): no row is too large, whatever it holds.

The module `votes` says how exact the event is for discrete noise. What the gate returns is made of the noisy sums
alone: cells below 2 standard deviations of the noise, a public threshold, are set to zero, and the rest is normalised.

>>> histogram = HistogramMechanism(cells=2, sigma=5.0)
>>> histogram.contribution(np.array([[3, 1], [0, 7], [0, 0]])).tolist()
[786432, 1310720]
>>> histogram.event
SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=5.0), count=1)
>>> histogram.to_shares(np.array([30 * SCALE, 9 * SCALE])).tolist()
[1.0, 0.0]

**Margins.** A record has one cell in each of m partitions (blocks of cells), such as by topic and by length. In each
block a unit hands in its own histogram as above. So adding or removing one unit moves each block by at most 2^20 in L2,
and all of them together by

    sensitivity (L2) = sqrt(m) 2^20,     noise std = sigma * sensitivity in each cell,     event = one Gaussian(sigma)

Margins tell less than the table of all combinations, and much more precisely: 24 topics and 15 lengths are 39 noisy
numbers, their table 360, most of which hold fewer people than noise. What the gate returns is made of the noisy sums
alone: in each block the nearest point (Euclidean) of the simplex of shares, after Duchi et al. (ICML 2008, figure 1),
to the noisy sums divided by their total.

>>> margins = Margins(blocks=(2, 3), sigma=5.0)
>>> margins.cells, round(margins.sensitivity / SCALE, 3)
(5, 1.414)
>>> margins.split(margins.to_shares(np.array([3, 1, 2, 2, 0]) * SCALE * 1000))
[array([0.75, 0.25]), array([0.5, 0.5, 0. ])]
"""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from dp_accounting.dp_event import GaussianDpEvent, SelfComposedDpEvent

from rayprivacy.accounting.events import validate
from rayprivacy.core.errors import ConfigError, ReleaseError
from rayprivacy.core.units import PrivacyUnit, Protection
from rayprivacy.release import noise
from rayprivacy.release.votes import SCALE, SIGMA_RANGE

MAX_CELLS = 1000  # more would be mostly noise, and shares that cannot be told from zero
_MAX_COUNT = 2**32  # records of one unit in one cell; a row of 1000 such counts stays within 64-bit integers
MAX_UNITS = 2**30
_UNITS_AT_ONCE = 4096  # in memory, as a row of counts each
NOISE = 5.0  # multiplier of a small vote in a budget of at least _PLENTY
_PLENTY = 3.0
_THRESHOLD = 2.0  # noise standard deviations under which a cell counts as empty

_Sums = npt.NDArray[np.int64]
Shares = npt.NDArray[np.float64]


class NoisyCounts:
    """Noise and event of one Gaussian release of units' counts: what a histogram and margins have in common."""

    cells: int
    sigma: float
    unit: PrivacyUnit

    @property
    def sensitivity(self) -> float:
        """Most that one unit, added or removed, moves the sums in L2, in grid steps."""
        raise NotImplementedError

    def contribution(self, counts: npt.NDArray[Any]) -> _Sums:
        """Sums [cells] of some units, from whole numbers [units, cells]; those of disjoint sets of units add up."""
        raise NotImplementedError

    @property
    def noise_std_grid(self) -> float:
        """Standard deviation of the noise in each cell, in grid steps."""
        return self.sigma * self.sensitivity

    @property
    def event(self) -> SelfComposedDpEvent:
        """What the ledger is charged."""
        return SelfComposedDpEvent(GaussianDpEvent(float(self.sigma)), 1)

    @property
    def protection(self) -> Protection:
        """What the event's epsilon is about."""
        return Protection(self.unit)

    def check(self, sums: npt.NDArray[Any]) -> _Sums:
        """Require int64 sums [cells] that some units' contributions can add up to; the error holds no value."""
        if sums.shape != (self.cells,) or sums.dtype != np.int64:
            raise ReleaseError(f"the sums are {sums.dtype} {sums.shape}: give int64 {(self.cells,)}.")
        if sums.min() < 0 or sums.max() > MAX_UNITS * SCALE:
            raise ReleaseError("a sum is outside what 2**30 units' histograms add up to: use contribution().")
        return sums

    def draw(self, sums: _Sums) -> _Sums:
        """Add fresh noise to every cell; only the gate calls this, after the charge has started."""
        return noise.add_discrete_gaussian(self.check(sums), self.noise_std_grid)


@dataclass(frozen=True)
class HistogramMechanism(NoisyCounts):
    """Sensitivity, noise and event of one release of a label histogram, which cannot be set apart.

    `sigma` is noise std / L2 sensitivity, and `unit` the one whose presence is hidden, a user or a record;
    add-or-remove.
    """

    cells: int
    sigma: float
    unit: PrivacyUnit = PrivacyUnit.USER

    def __post_init__(self) -> None:
        check_cells(self.cells)
        check_sigma_and_unit(self.sigma, self.unit)
        validate(self.event)

    @property
    def sensitivity(self) -> float:
        """Most that one unit, added or removed, moves the sums in L2, in grid steps."""
        return float(SCALE)

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that fixes the mechanism, as JSON values."""
        return {"mechanism": "histogram", "scale": SCALE, **asdict(self)}

    def contribution(self, counts: npt.NDArray[Any]) -> _Sums:
        """Sums [cells] of the normalised histograms of some units, from whole numbers [units, cells]."""
        return _normalised_sums(counts, self.cells)

    def to_shares(self, noisy: _Sums) -> Shares:
        """Shares [cells] that add up to 1: cells below the public threshold are zero; uniform if all of them are."""
        clear = np.where(noisy >= _THRESHOLD * self.noise_std_grid, noisy, 0).astype(np.float64)
        kept = clear if clear.any() else np.ones(self.cells)
        shares: Shares = kept / kept.sum()
        return shares


def _normalised_sums(counts: npt.NDArray[Any], cells: int) -> _Sums:
    """Sums [cells] of units' histograms, each divided by its number of records and rounded down to the grid.

    A row of the counts [units, cells] that holds a negative or absurdly large entry contributes zero.
    """
    if counts.ndim != 2 or counts.shape[1] != cells or not np.issubdtype(counts.dtype, np.integer):
        raise ReleaseError(f"the counts are {counts.dtype} {counts.shape}: give whole numbers [units, {cells}].")
    valid = np.all((counts >= 0) & (counts <= _MAX_COUNT), axis=1)
    whole = np.where(valid[:, None], counts, 0).astype(np.int64)
    records = np.maximum(whole.sum(axis=1, keepdims=True), 1)
    sums: _Sums = (whole * SCALE // records).sum(axis=0)
    return sums


def check_sigma_and_unit(sigma: float, unit: PrivacyUnit) -> None:
    """Refuse noise that the grid is too coarse or too small for, and a unit that is neither a user nor a record."""
    if not SIGMA_RANGE[0] <= sigma <= SIGMA_RANGE[1]:
        raise ReleaseError(f"sigma is {sigma}: give a number between {SIGMA_RANGE[0]:g} and {SIGMA_RANGE[1]:g}.")
    if unit not in (PrivacyUnit.USER, PrivacyUnit.RECORD):
        raise ReleaseError(f"unit is '{unit}', and these sums protect users or records: use one.")


def summed(mechanism: NoisyCounts, owners: npt.NDArray[Any], cells: npt.NDArray[np.int64]) -> _Sums:
    """Sums [cells] over records of which each falls into some cells; integers, so that their order does not matter.

    `owners` [records] is the number of each record's unit, from 0 on, and `cells` [records, places] its cells.
    """
    total = np.zeros(mechanism.cells, dtype=np.int64)
    for first in range(0, int(owners.max(initial=-1)) + 1, _UNITS_AT_ONCE):
        some = (first <= owners) & (owners < first + _UNITS_AT_ONCE)
        counts = np.zeros((_UNITS_AT_ONCE, mechanism.cells), dtype=np.int64)
        np.add.at(counts, (owners[some, None] - first, cells[some]), 1)
        total += mechanism.contribution(counts)
    return total


def check_cells(cells: int) -> None:
    """Refuse more combinations of label values than a histogram can tell apart, or none."""
    if not 1 <= cells <= MAX_CELLS:
        raise ConfigError(
            f"codes.values makes {cells:,} combinations of labels (each label also has 'other'), and 1 to"
            f" {MAX_CELLS:,} are taken: choose fewer labels or values."
        )


@dataclass(frozen=True)
class Margins(NoisyCounts):
    """Sensitivity, noise and event of one release of margins, which cannot be set apart.

    `blocks` are the numbers of cells of the partitions, and `cells` is their sum; the rest is as for a histogram.
    """

    blocks: tuple[int, ...]
    sigma: float
    unit: PrivacyUnit = PrivacyUnit.USER
    cells: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "cells", sum(self.blocks))
        check_cells(self.cells)
        if min(self.blocks) < 1:
            raise ReleaseError(f"the blocks have {self.blocks} cells: give each at least 1.")
        check_sigma_and_unit(self.sigma, self.unit)
        validate(self.event)

    @property
    def sensitivity(self) -> float:
        """Most that one unit, added or removed, moves the sums in L2, in grid steps."""
        return math.sqrt(len(self.blocks)) * SCALE

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that fixes the mechanism, as JSON values."""
        return {"mechanism": "margins", "scale": SCALE, **asdict(self)}

    def split(self, values: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """Values by cell along the last axis, cut into the blocks."""
        return np.split(values, np.cumsum(self.blocks)[:-1], axis=-1)

    def contribution(self, counts: npt.NDArray[Any]) -> _Sums:
        """Sums [cells] of some units from whole numbers [units, cells], block by block."""
        if counts.ndim != 2 or counts.shape[1] != self.cells:
            raise ReleaseError(
                f"the counts are {counts.dtype} {counts.shape}: give whole numbers [units, {self.cells}]."
            )
        blocks = zip(self.split(counts), self.blocks, strict=True)
        return np.concatenate([_normalised_sums(block, cells) for block, cells in blocks])

    def to_shares(self, noisy: _Sums) -> Shares:
        """Shares [cells]; those of each block add up to 1."""
        return np.concatenate([nearest_shares(block.astype(np.float64)) for block in self.split(noisy)])


@dataclass(frozen=True)
class Totals(Margins):
    """Margins that are read as counts of units: to how many each cell belongs, in parts of a unit.

    >>> Totals(blocks=(1, 2), sigma=5.0).to_shares(np.array([30, 12, 18]) * SCALE).tolist()
    [30.0, 12.0, 18.0]
    """

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that fixes the mechanism, as JSON values."""
        return super().parameters | {"mechanism": "totals"}

    @property
    def std(self) -> float:
        """Standard deviation of the noise on each count, in units."""
        return self.noise_std_grid / SCALE

    def to_shares(self, noisy: _Sums) -> Shares:
        """Noisy counts [cells], which may be negative; shares of them are post-processing."""
        return noisy / float(SCALE)


def nearest_shares(noisy: Shares) -> Shares:
    """The point of the simplex that is nearest to the noisy sums over their total; uniform if that is not positive."""
    total = noisy.sum()
    if total <= 0:
        return np.full(len(noisy), 1 / len(noisy))
    scaled = noisy / total
    falling = np.sort(scaled)[::-1]
    over = (np.cumsum(falling) - 1) / np.arange(1, len(scaled) + 1)
    kept = np.flatnonzero(falling > over)[-1]
    shares = np.maximum(scaled - over[kept], 0)
    return np.asarray(shares / shares.sum(), np.float64)


def small_vote_noise(epsilon: float) -> float:
    """The noise multiplier of a small vote beside a release (topics, lengths, codes), in a budget of this epsilon.

    A vote of multiplier 5 costs epsilon 0.83 at delta 1e-6: little of a budget of 3, and most of a budget of 1. So
    noise grows as the budget falls, and takes at most a tenth of mu squared at any epsilon up to 3. How precise shares
    are depends on the number of users, which is private: docs/frontier.md has what it costs a thousand of them.

    >>> small_vote_noise(8), small_vote_noise(3), small_vote_noise(0.5)
    (5.0, 5.0, 30.0)
    """
    return round(NOISE * max(1.0, _PLENTY / epsilon), 4)
