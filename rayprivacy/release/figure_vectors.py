"""Sums of bounded vectors: figures of an evaluation that may be published, all of them in one Gaussian release.

Each unit (a held-out user, say) hands in one vector of real numbers: what it adds to a count of units, to the sum of
their losses, to histograms. What the coordinates mean, and how they are weighted, is public and of no concern here: the
bound is on the vector as a whole. One that is longer than 1 in L2 is shrunk to 1, and one that holds a number that is
not finite is zero. On the grid of 2^-20,

    v_i = 2^20 x_i / max(1, |x|), rounded towards zero; and zero for all i if then, in integers, v_1^2 + ... > 2^40

    sensitivity (L2) = 2^20 exactly,     noise std = sigma * 2^20 in each coordinate,     event = one Gaussian(sigma)

**Proof.** What a unit adds to the sums is a function of its own vector alone, and the sums are of integers, so that
they depend on no order: adding or removing the unit moves them by v, and nothing else. The sum of the squares of v is
at most 2^40, because it was compared with that in exact integers: no entry is larger than 2^20 and a bit, and 1000
squares of such are below 2^63. How floating point rounded on the way does not matter. (The comparison never fails for
what the division has made: truncation only shortens. It is there so that the bound rests on integers alone.)

Entries may be negative: a loss between 0 and L says most for its noise if it is counted from L / 2.

The module `votes` says how exact the event is for discrete noise.

>>> sums = FigureVectors(cells=2, sigma=5.0)
>>> sums.contribution(np.array([[0.5, -0.25], [3.0, 4.0], [float("nan"), 1.0]])).tolist()
[1153433, 576716]
>>> sums.event
SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=5.0), count=1)
>>> sums.to_sums(np.array([SCALE, -SCALE // 2])).tolist()
[1.0, -0.5]
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rayprivacy.accounting.events import validate
from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.release.histogram import MAX_CELLS, MAX_UNITS, NoisyCounts, check_sigma_and_unit
from rayprivacy.release.votes import SCALE

_Sums = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FigureVectors(NoisyCounts):
    """Bound, noise and event of one release of summed vectors, which cannot be set apart.

    `cells` is how long a vector is; `sigma` is noise std / L2 sensitivity, and `unit` the one whose presence is hidden,
    a user or a record; add-or-remove.
    """

    cells: int
    sigma: float
    unit: PrivacyUnit = PrivacyUnit.USER

    def __post_init__(self) -> None:
        if not 1 <= self.cells <= MAX_CELLS:
            raise ReleaseError(f"the figures take {self.cells:,} numbers, and 1 to {MAX_CELLS:,} are taken.")
        check_sigma_and_unit(self.sigma, self.unit)
        validate(self.event)

    @property
    def sensitivity(self) -> float:
        """Most that one unit, added or removed, moves the sums in L2, in grid steps."""
        return float(SCALE)

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that fixes the mechanism, as JSON values."""
        return {"mechanism": "figures", "scale": SCALE, **asdict(self)}

    def contribution(self, vectors: npt.NDArray[Any]) -> _Sums:
        """Sums [cells] of the bounded vectors of some units, from real numbers [units, cells]."""
        if vectors.ndim != 2 or vectors.shape[1] != self.cells:
            raise ReleaseError(f"the vectors are {vectors.dtype} {vectors.shape}: give numbers [units, {self.cells}].")
        given = np.asarray(vectors, np.float64)
        whole = np.where(np.isfinite(given).all(axis=1, keepdims=True), given, 0.0)
        with np.errstate(over="ignore", under="ignore"):  # of a square that overflows the norm is endless: all is zero
            norms = np.sqrt((whole * whole).sum(axis=1, keepdims=True))
        steps = np.trunc(whole / np.maximum(norms, 1.0) * SCALE).astype(np.int64)
        within = (steps * steps).sum(axis=1, keepdims=True) <= SCALE * SCALE
        return np.asarray(np.where(within, steps, 0).sum(axis=0, dtype=np.int64))

    def check(self, sums: npt.NDArray[Any]) -> _Sums:
        """Require int64 sums [cells] that some units' vectors can add up to; the error holds no value."""
        if sums.shape != (self.cells,) or sums.dtype != np.int64:
            raise ReleaseError(f"the sums are {sums.dtype} {sums.shape}: give int64 {(self.cells,)}.")
        if max(-int(sums.min()), int(sums.max())) > MAX_UNITS * SCALE:
            raise ReleaseError("a sum is outside what 2**30 units' vectors add up to: use contribution().")
        return sums

    def to_sums(self, noisy: _Sums) -> npt.NDArray[np.float64]:
        """The noisy sums [cells] in units, to which each unit's vector adds a length of 1 at most."""
        return np.asarray(noisy / SCALE, np.float64)
