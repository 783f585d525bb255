"""The vote of SeqPATE: the sum of the teachers' distributions over candidates, plus discrete Gaussian noise.

Source: SeqPATE (Tian et al., NeurIPS 2022), section 4, with the noise of Canonne, Kamath & Steinke (2020).

Every teacher answers each query (a context and a position) with a distribution over k candidates. A user sits in one
shard, hence in one teacher, hence changes one summand of each query's sum. Two sub-distributions p, p' of total at most
1 differ by at most sqrt(2) in L2. The votes are rounded to integers first (steps of 2^-20), so that sums do not depend
on their order and the noise is exact; rounding moves each coordinate of the difference by at most one step, which adds
sqrt(k) steps. So on the grid, per query, for add/remove and replace alike,

    sensitivity = sqrt(2) * (1 + 1e-6) * 2^20 + sqrt(k),    noise std = sigma * sensitivity,    event = Gaussian(sigma)

A phrase may occur in several shards; with a public bound n_s on them the sensitivity is n_s times as large.

Adding noise to all queries of a release is the composition of `queries` such events, in any adaptive order.

How exact is the event? For Renyi and zero-concentrated DP the discrete Gaussian costs at most what the continuous one
of the same standard deviation costs: exact. The (epsilon, delta) curve used by the ledger is that of the continuous
one; where the noise has a standard deviation of a million steps (sigma about 1) the two curves differ by a relative
error in delta of the order of one step per standard deviation, 1e-6, which is neglected and not proven.

A teacher that fails on its data votes a constant instead, and the number of teachers stays what it is.

>>> votes = VoteMechanism(queries=1, candidates=2, teachers=3, sigma=10.0)
>>> votes.quantise(np.array([[1.0, 0.0], [float("nan"), 0.5]])).tolist()
[[1048576, 0], [524288, 524288]]
>>> votes.event
SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=10.0), count=1)
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from dp_accounting.dp_event import GaussianDpEvent, SelfComposedDpEvent

from rayprivacy.accounting.events import validate
from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.units import PrivacyUnit, Protection
from rayprivacy.release import noise

SCALE = 2**20
SUM_TOLERANCE = 1e-6  # how far above 1 a distribution may sum; the sensitivity covers it
SIGMA_RANGE = (1e-3, 1e9)  # below, the grid is too coarse for the curve; above, the noise leaves 64-bit integers
MAX_TEACHERS = 2**30  # teachers * SCALE stays within the integers that float64 holds exactly

Votes = npt.NDArray[np.int64]
Means = npt.NDArray[np.float64]


@dataclass(frozen=True)
class VoteMechanism:
    """Sensitivity, noise and event of one release of votes, which cannot be set apart.

    Attributes:
        queries: how many (context, position) queries the release answers.
        candidates: candidate tokens per query.
        teachers: number of teachers, all of which vote.
        sigma: noise std / L2 sensitivity, per query (`accounting.calibrate.sigma_for`).
        unit: whose presence is hidden; users and records sit in one shard each.
        shards: public bound n_s on the shards that one phrase may occur in, enforced when the corpus is sharded; 1 for
            users and records.

    Raises:
        ReleaseError: a count is not a positive whole number, or sigma is out of range.
    """

    queries: int
    candidates: int
    teachers: int
    sigma: float
    unit: PrivacyUnit = PrivacyUnit.USER
    shards: int = 1

    def __post_init__(self) -> None:
        for name in ("queries", "candidates", "teachers", "shards"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= MAX_TEACHERS:
                raise ReleaseError(f"{name} is {value!r}: give a whole number between 1 and 2**30.")
        if not SIGMA_RANGE[0] <= self.sigma <= SIGMA_RANGE[1]:
            raise ReleaseError(
                f"sigma is {self.sigma}: give a number between {SIGMA_RANGE[0]:g} and {SIGMA_RANGE[1]:g}."
            )
        if self.shards > 1 and self.unit is not PrivacyUnit.PHRASE:
            raise ReleaseError(f"shards is {self.shards} for unit '{self.unit}': only a phrase may occur in several.")
        validate(self.event)

    @property
    def sensitivity(self) -> float:
        """L2 change of one query's sum, in grid steps, when `shards` teachers change their votes."""
        return self.shards * (math.sqrt(2) * (1 + SUM_TOLERANCE) * SCALE + math.sqrt(self.candidates))

    @property
    def noise_std_grid(self) -> float:
        """Standard deviation of the noise, in grid steps."""
        return self.sigma * self.sensitivity

    @property
    def event(self) -> SelfComposedDpEvent:
        """What the ledger is charged."""
        return SelfComposedDpEvent(GaussianDpEvent(float(self.sigma)), self.queries)

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that fixes the mechanism, as JSON values."""
        own = asdict(self)
        if self.unit is PrivacyUnit.USER:  # left out, so that releases of the first version are found again
            del own["unit"], own["shards"]
        return {"mechanism": "vote", "scale": SCALE, **own}

    @property
    def protection(self) -> Protection:
        """What the event's epsilon is about."""
        return Protection(self.unit)

    def quantise(self, probabilities: npt.NDArray[Any]) -> Votes:
        """Round votes [..., candidates] to the grid; what is no sub-distribution becomes the uniform constant.

        Raises:
            ReleaseError: the last axis is not `candidates` long.
        """
        votes = np.asarray(probabilities, dtype=np.float64)
        if votes.ndim < 1 or votes.shape[-1] != self.candidates:
            raise ReleaseError(f"votes have the shape {votes.shape}: the last axis must be {self.candidates} long.")
        with np.errstate(all="ignore"):  # NaN fails every comparison, and so is replaced
            valid = (votes >= 0).all(axis=-1) & (votes.sum(axis=-1) <= 1 + SUM_TOLERANCE)
        steps: Means = np.rint(np.where(valid[..., None], votes, 1 / self.candidates) * SCALE)
        return steps.astype(np.int64)

    def check(self, sums: npt.NDArray[Any]) -> Votes:
        """Require int64 sums [queries, candidates] that `teachers` quantised votes can add up to.

        Raises:
            ReleaseError: wrong shape, dtype or range; the message holds no value.
        """
        expected = (self.queries, self.candidates)
        if sums.shape != expected or sums.dtype != np.int64:
            raise ReleaseError(f"the sums are {sums.dtype} {sums.shape}: give int64 {expected}.")
        most = self.teachers * (math.ceil(SCALE * (1 + SUM_TOLERANCE)) + 1)
        if sums.min() < 0 or sums.max() > most:
            raise ReleaseError(f"a sum is outside what {self.teachers} quantised votes add up to: use quantise().")
        return sums

    def draw(self, sums: Votes) -> Votes:
        """Add fresh noise to every sum; only the gate calls this, after the charge has started."""
        std = self.noise_std_grid
        return np.stack([noise.add_discrete_gaussian(query, std) for query in self.check(sums)])

    def to_mean(self, noisy: Votes) -> Means:
        """Unbiased mean votes; entries may be negative or above 1, and clipping them is post-processing."""
        return noisy / float(SCALE * self.teachers)
