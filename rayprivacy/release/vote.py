"""The vote of SeqPATE: the sum of the teachers' ballots over candidates, plus discrete noise.

Source: SeqPATE (Tian et al., NeurIPS 2022), section 4, with the noise of Canonne, Kamath & Steinke (2020).

Every teacher answers each query (a context and a position) with a ballot over k candidates. A user sits in one shard,
hence in one teacher, hence changes one summand of each query's sum, by no more than any two ballots differ
(release/ballots.py has the argument). On the grid of 2^-20, per query, for add/remove and replace alike,

    Gaussian:  sensitivity (L2) = sqrt(2) * (1 + 1e-6) * 2^20 + sqrt(k),   noise std   = sigma * sensitivity
               with votes centred and clipped to r: min(2r, sqrt(2)) in place of sqrt(2)
    Laplace:   sensitivity (L1) = 2 * (1 + 1e-6) * 2^20 + k,               noise scale = sigma * sensitivity

and the event is Gaussian(sigma) or Laplace(sigma). A phrase may occur in several shards; with a public bound n_s on
them the sensitivity is n_s times as large. Adding noise to all queries of a release is the composition of `queries`
such events, in any adaptive order.

How exact is the event? For Renyi and zero-concentrated DP the discrete Gaussian costs at most what the continuous one
of the same standard deviation costs: exact. The (epsilon, delta) curve used by the ledger is that of the continuous
one; where the noise has a standard deviation of a million steps (sigma about 1) the two curves differ by a relative
error in delta of the order of one step per standard deviation, 1e-6 (with a small clip the noise has fewer steps, and
the error is larger in proportion), which is neglected and not proven.

The discrete Laplace is 1/sigma-DP per query, pure and exact, hence also the rho = 1/(2 sigma^2) of composition 'zcdp'.
'rdp' and 'pld' use the curve of one continuous Laplace that is shifted by the whole sensitivity. Shifts of several
coordinates are no easier to see than their sum in one (go there a coordinate at a time: group privacy of Dong, Roth &
Su 2022, which log-concave noise meets with equality); what the grid adds is again neglected and not proven.

A teacher that fails on its data votes a constant instead, and the number of teachers stays what it is.

>>> votes = VoteMechanism(queries=1, candidates=2, teachers=3, sigma=10.0)
>>> votes.summed(np.array([[[1.0, 0.0], [float("nan"), 0.5], [0.0, 1.0]]])).tolist()
[[1572864, 1572864]]
>>> votes.event
SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=10.0), count=1)
>>> centred = VoteMechanism(queries=1, candidates=2, teachers=3, sigma=10.0, clip=0.1)
>>> round(votes.sensitivity / centred.sensitivity, 2)
7.07
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from dp_accounting.dp_event import GaussianDpEvent, LaplaceDpEvent, SelfComposedDpEvent

from rayprivacy.accounting.events import validate
from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.units import PrivacyUnit, Protection
from rayprivacy.release import noise
from rayprivacy.release.ballots import SCALE, SUM_TOLERANCE, Ballot, BallotKind, Votes

__all__ = ["SCALE", "SUM_TOLERANCE", "Means", "NoiseKind", "VoteMechanism", "Votes"]

SIGMA_RANGE = (1e-3, 1e9)  # below, the grid is too coarse for the curve; above, the noise leaves 64-bit integers
MAX_TEACHERS = 2**30  # teachers * SCALE stays within the integers that float64 holds exactly

NoiseKind = Literal["gaussian", "laplace"]
Means = npt.NDArray[np.float64]


@dataclass(frozen=True)
class VoteMechanism:
    """Sensitivity, noise and event of one release of votes, which cannot be set apart.

    Attributes:
        queries: how many (context, position) queries the release answers.
        candidates: candidate tokens per query.
        teachers: number of teachers, all of which vote.
        sigma: noise std / L2 sensitivity per query, or Laplace scale / L1 sensitivity (`ledger.least_noise`).
        unit: whose presence is hidden; users and records sit in one shard each.
        shards: public bound n_s on the shards that one phrase may occur in, enforced when the corpus is sharded; 1 for
            users and records.
        ballot: what a teacher hands in, its distribution or the one-hot of its most likely candidate.
        clip: L2 radius r of votes centred on a public distribution, as a probability; None for votes as they are.
        noise: the distribution of the noise.

    Raises:
        ReleaseError: a count is not a positive whole number, sigma or clip is out of range, a name is unknown, or clip
            comes with Laplace noise.
    """

    queries: int
    candidates: int
    teachers: int
    sigma: float
    unit: PrivacyUnit = PrivacyUnit.USER
    shards: int = 1
    ballot: BallotKind = "distribution"
    clip: float | None = None
    noise: NoiseKind = "gaussian"

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
        if self.noise not in ("gaussian", "laplace"):
            raise ReleaseError(f"noise is {self.noise!r}: use 'gaussian' or 'laplace'.")
        if self.clip is not None and self.noise == "laplace":
            raise ReleaseError(
                f"clip is {self.clip} and noise 'laplace': clip bounds the L2 norm; use noise 'gaussian'."
            )
        _ = self._ballots  # refuses an unknown ballot, or a clip out of range
        validate(self.event)

    @property
    def _ballots(self) -> Ballot:
        return Ballot(self.candidates, self.ballot, self.clip)

    @property
    def sensitivity(self) -> float:
        """Change of one query's sum, in grid steps, when `shards` teachers change their votes: L1 for Laplace noise."""
        ballots = self._ballots
        return self.shards * (ballots.l1_difference if self.noise == "laplace" else ballots.l2_difference)

    @property
    def noise_scale_grid(self) -> float:
        """What the noise is drawn with, in grid steps: the Gaussian's standard deviation, or the Laplace scale."""
        return self.sigma * self.sensitivity

    @property
    def noise_std_grid(self) -> float:
        """Standard deviation of the noise, in grid steps."""
        return self.noise_scale_grid * (math.sqrt(2) if self.noise == "laplace" else 1)

    @property
    def event(self) -> SelfComposedDpEvent:
        """What the ledger is charged."""
        kind = LaplaceDpEvent if self.noise == "laplace" else GaussianDpEvent
        return SelfComposedDpEvent(kind(float(self.sigma)), self.queries)

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that fixes the mechanism, as JSON values."""
        own = asdict(self)
        # What the first version did not have is left out where it says nothing, so that its releases are found again.
        if self.unit is PrivacyUnit.USER:
            del own["unit"], own["shards"]
        for name in ("ballot", "clip", "noise"):
            if own[name] == getattr(VoteMechanism, name):
                del own[name]
        return {"mechanism": "vote", "scale": SCALE, **own}

    @property
    def protection(self) -> Protection:
        """What the event's epsilon is about."""
        return Protection(self.unit)

    def quantise(self, probabilities: npt.NDArray[Any], centre: npt.NDArray[Any] | None = None) -> Votes:
        """Ballots [..., candidates] on the grid; what is no sub-distribution becomes a constant.

        Args:
            probabilities: distributions of this shape; float32 is not copied to float64.
            centre: public distribution for centred votes; its shape broadcasts to that of the votes.

        Raises:
            ReleaseError: the last axis is not `candidates` long, or the centre is missing, not asked for or invalid.
        """
        return self._ballots.quantise(probabilities, centre)

    def summed(self, probabilities: npt.NDArray[Any], centre: npt.NDArray[Any] | None = None) -> Votes:
        """Sums [..., candidates] of the ballots of [..., teachers, candidates]; the centre is [..., candidates].

        Raises:
            ReleaseError: as `quantise`.
        """
        return self._ballots.summed(probabilities, centre)

    def check(self, sums: npt.NDArray[Any]) -> Votes:
        """Require int64 sums [queries, candidates] that `teachers` quantised votes can add up to.

        Raises:
            ReleaseError: wrong shape, dtype or range; the message holds no value.
        """
        expected = (self.queries, self.candidates)
        if sums.shape != expected or sums.dtype != np.int64:
            raise ReleaseError(f"the sums are {sums.dtype} {sums.shape}: give int64 {expected}.")
        least, most = self._ballots.limits
        if sums.min() < self.teachers * least or sums.max() > self.teachers * most:
            raise ReleaseError(f"a sum is outside what {self.teachers} quantised votes add up to: use quantise().")
        return sums

    def draw(self, sums: Votes) -> Votes:
        """Add fresh noise to every sum; only the gate calls this, after the charge has started."""
        add = noise.add_discrete_laplace if self.noise == "laplace" else noise.add_discrete_gaussian
        return np.stack([add(query, self.noise_scale_grid) for query in self.check(sums)])

    def to_mean(self, noisy: Votes) -> Means:
        """Mean ballots plus noise; entries may be negative or above 1, and clipping them is post-processing.

        Of centred votes it is the mean deviation: the caller adds the centre.
        """
        return noisy / float(SCALE * self.teachers)
