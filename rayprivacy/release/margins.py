"""Margins: how the units' records are spread over several partitions at once, such as by topic and by length.

A record has one cell in each of m partitions (blocks of cells). In each block a unit hands in its own histogram divided
by its number of records, rounded down to the grid as in `histogram`: at least 0, and at most 2^20 in sum. So adding or
removing one unit moves each block by at most 2^20 in L2, and all of them together by

    sensitivity (L2) = sqrt(m) 2^20,     noise std = sigma * sensitivity in each cell,     event = one Gaussian(sigma)

Margins tell less than the table of all combinations, and much more precisely: 24 topics and 15 lengths are 39 noisy
numbers, their table 360, most of which hold fewer people than noise.

What the gate returns is made of the noisy sums alone: in each block the nearest point (Euclidean) of the simplex of
shares, after Duchi et al. (ICML 2008, figure 1), to the noisy sums divided by their total.

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

from rayprivacy.accounting.events import validate
from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.release.ballots import SCALE
from rayprivacy.release.histogram import (
    NoisyCounts,
    Shares,
    Sums,
    check_cells,
    check_sigma_and_unit,
    normalised_sums,
)


@dataclass(frozen=True)
class Margins(NoisyCounts):
    """Sensitivity, noise and event of one release of margins, which cannot be set apart.

    Attributes:
        blocks: number of cells of each partition.
        sigma: noise std / L2 sensitivity.
        unit: whose presence is hidden, a user or a record; add-or-remove.
        cells: all cells, block after block.

    Raises:
        ConfigError: there are no cells, or more than a histogram may have.
        ReleaseError: a block is empty, sigma is out of range, or the unit is another one.
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

    def contribution(self, counts: npt.NDArray[Any]) -> Sums:
        """Sums [cells] of some units from whole numbers [units, cells], block by block."""
        if counts.ndim != 2 or counts.shape[1] != self.cells:
            raise ReleaseError(
                f"the counts are {counts.dtype} {counts.shape}: give whole numbers [units, {self.cells}]."
            )
        blocks = zip(self.split(counts), self.blocks, strict=True)
        return np.concatenate([normalised_sums(block, cells) for block, cells in blocks])

    def to_shares(self, noisy: Sums) -> Shares:
        """Shares [cells]; those of each block add up to 1."""
        return np.concatenate([_nearest_shares(block.astype(np.float64)) for block in self.split(noisy)])


def _nearest_shares(noisy: Shares) -> Shares:
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
