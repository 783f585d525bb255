"""The vote of SeqPATE: the sum of the teachers' ballots over candidates, plus discrete noise.

Source: SeqPATE (Tian et al., NeurIPS 2022), section 4, with the noise of Canonne, Kamath & Steinke (2020).

Every teacher answers each query (a context and a position) with a ballot over k candidates. A user sits in one shard,
hence in one teacher, hence changes one summand of each query's sum, by no more than any two ballots differ
(see below). On the grid of 2^-20, per query, for add/remove and replace alike,

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

Ballots are integers (steps of 2^-20) before they are summed, so that sums do not depend on their order and noise can be
exact. A teacher hands in one of

- its distribution p (SeqPATE);
- "top1": the one-hot of its most likely candidate, the first of equals (their ablation "-Merge_P");
- with `clip` = r, either of them centred: the deviation from a public distribution c (the student's), shrunk to an L2
  norm of at most r.

Two sub-distributions of total at most 1 differ by at most sqrt(2) in L2 and by 2 in L1. Centring shifts both alike, and
shrinking is the projection on the ball of radius r, which never takes two points further apart; two points of the ball
are at most 2r apart. So centred ballots differ by at most min(2r, sqrt(2)). That holds for ANY two ballots of a
teacher, hence for a user replaced, added or removed: a teacher left without data votes the public model, which is just
another ballot. Rounding moves each of the k coordinates of a difference by at most one step.

A teacher that fails on its data votes a constant, and the number of teachers stays what it is: what is no
sub-distribution (NaN, a negative entry, a total above 1) becomes the uniform distribution, or the centre itself, whose
deviation is zero.

>>> votes = VoteMechanism(queries=1, candidates=2, teachers=3, sigma=10.0)
>>> votes.summed(np.array([[[1.0, 0.0], [float("nan"), 0.5], [0.0, 1.0]]])).tolist()
[[1572864, 1572864]]
>>> votes.event
SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=10.0), count=1)
>>> centred = VoteMechanism(queries=1, candidates=2, teachers=3, sigma=10.0, clip=0.1)
>>> round(votes.sensitivity / centred.sensitivity, 2)
7.07
>>> Ballot(2, clip=0.5).quantise(np.array([[0.75, 0.25], [float("nan"), 0.5]]), np.array([0.5, 0.5])).tolist()
[[262144, -262144], [0, 0]]
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

SCALE = 2**20
SUM_TOLERANCE = 1e-6  # how far above 1 a distribution may sum; the differences cover it
SIGMA_RANGE = (1e-3, 1e9)  # below, the grid is too coarse for the curve; above, the noise leaves 64-bit integers
_MAX_TEACHERS = 2**30  # teachers * SCALE stays within the integers that float64 holds exactly
CLIP_RANGE = (1e-3, 2.0)  # below, the grid is too coarse; above, nothing is ever clipped

BallotKind = Literal["distribution", "top1"]
NoiseKind = Literal["gaussian", "laplace"]
Means = npt.NDArray[np.float64]
Votes = npt.NDArray[np.int64]
_Real = npt.NDArray[Any]


@dataclass(frozen=True)
class Ballot:
    """One teacher's vote on one query, of a number of candidate tokens.

    `clip` is the L2 radius r of centred votes, as a probability; None for votes that are not centred.
    """

    candidates: int
    kind: BallotKind = "distribution"
    clip: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("distribution", "top1"):
            raise ReleaseError(f"ballot is {self.kind!r}: use 'distribution' or 'top1'.")
        if self.clip is not None and not (_is_number(self.clip) and CLIP_RANGE[0] <= self.clip <= CLIP_RANGE[1]):
            raise ReleaseError(
                f"clip is {self.clip!r}: give a number between {CLIP_RANGE[0]:g} and {CLIP_RANGE[1]:g}, or none."
            )

    @property
    def l2_difference(self) -> float:
        """Most that two ballots differ in L2, in grid steps."""
        apart = math.sqrt(2) if self.clip is None else min(2 * self.clip, math.sqrt(2))
        return apart * (1 + SUM_TOLERANCE) * SCALE + math.sqrt(self.candidates)

    @property
    def l1_difference(self) -> float:
        """Most that two ballots differ in L1, in grid steps; clipping does not count, it bounds L2."""
        return 2 * (1 + SUM_TOLERANCE) * SCALE + self.candidates

    @property
    def limits(self) -> tuple[int, int]:
        """Least and largest entry of a ballot, in grid steps."""
        largest = math.ceil(min(self.clip or 1, 1) * SCALE * (1 + SUM_TOLERANCE)) + 1
        return (0 if self.clip is None else -largest), largest

    def quantise(self, probabilities: _Real, centre: _Real | None = None) -> Votes:
        """Ballots [..., candidates] from distributions of this shape."""
        ballots: Votes = self._steps(probabilities, centre).astype(np.int64)
        return ballots

    def summed(self, probabilities: _Real, centre: _Real | None = None) -> Votes:
        """The sum over teachers of their ballots, int64 [..., candidates]."""
        if np.ndim(probabilities) < 2:
            raise ReleaseError("votes have no axis of teachers: give [..., teachers, candidates].")
        shared = None if centre is None else np.asarray(centre)[..., None, :]
        exact = self._steps(probabilities, shared).sum(axis=-2, dtype=np.float64)  # 2^30 teachers stay below 2^53
        sums: Votes = exact.astype(np.int64)
        return sums

    def _steps(self, probabilities: _Real, centre: _Real | None) -> _Real:
        """Whole grid steps as floats: float32 for float32, where a multiple of 2^20 is exact and rounds alike."""
        given = np.asarray(probabilities)
        votes = given if given.dtype == np.float32 else np.asarray(given, dtype=np.float64)
        if votes.ndim < 1 or votes.shape[-1] != self.candidates:
            raise ReleaseError(f"votes have the shape {votes.shape}: the last axis must be {self.candidates} long.")
        if (centre is None) != (self.clip is None):
            raise ReleaseError("centre and clip belong together: give both for centred votes, or neither.")
        valid = _valid(votes)
        if self.kind == "top1":
            votes = _one_hot(votes)
        if centre is None or self.clip is None:
            steps: _Real = _replaced(votes, valid, 1 / self.candidates) * votes.dtype.type(SCALE)
        else:
            steps = _shrunk(_replaced(votes - _checked(centre, votes.shape), valid, 0.0), self.clip)
        np.rint(steps, out=steps)
        return steps


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _valid(votes: _Real) -> npt.NDArray[np.bool_]:
    """Which rows are sub-distributions; NaN fails every comparison."""
    with np.errstate(all="ignore"):
        valid: npt.NDArray[np.bool_] = votes.sum(axis=-1, dtype=np.float64) <= 1 + SUM_TOLERANCE
        # One minimum over everything is several times faster than one for each row, and nearly always enough.
        if votes.size and not votes.min() >= 0:
            valid &= (votes >= 0).all(axis=-1)
    return valid


def _one_hot(votes: _Real) -> _Real:
    first = np.zeros_like(votes)
    np.put_along_axis(first, votes.argmax(axis=-1)[..., None], 1.0, axis=-1)
    return first


def _replaced(votes: _Real, valid: npt.NDArray[np.bool_], constant: float) -> _Real:
    return votes if valid.all() else np.where(valid[..., None], votes, votes.dtype.type(constant))


def _shrunk(deviations: npt.NDArray[np.float64], radius: float) -> _Real:
    """Deviations projected on the ball, in grid steps."""
    norms = np.sqrt(np.einsum("...k,...k->...", deviations, deviations))
    deviations *= (radius * SCALE / np.maximum(norms, radius))[..., None]
    return deviations


def _checked(centre: _Real, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """The centre in float64, in which deviations and their norms are computed."""
    public = np.asarray(centre, dtype=np.float64)
    try:
        fits = public.shape[-1:] == shape[-1:] and np.broadcast_shapes(public.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ReleaseError(f"centre has the shape {public.shape} for votes {shape}: give one centre for each query.")
    if not _valid(public).all():
        raise ReleaseError("centre is no distribution: give finite probabilities of total at most 1.")
    return public


@dataclass(frozen=True)
class VoteMechanism:
    """Sensitivity, noise and event of one release of votes, which cannot be set apart.

    `teachers` all vote on each of `queries` (context, position) queries of `candidates` tokens. `sigma` is noise std /
    L2 sensitivity per query, or Laplace scale / L1 sensitivity (`ledger.least_noise`). `shards` is the public bound n_s
    on the shards that one phrase may occur in, enforced when the corpus is sharded; users and records sit in one shard
    each. `clip` is the L2 radius r of votes centred on a public distribution, as a probability; None for votes as they
    are.
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
            if type(value) is not int or not 1 <= value <= _MAX_TEACHERS:
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

        The public centre is for centred votes; its shape broadcasts to that of the votes. float32 is not copied to
        float64.
        """
        return self._ballots.quantise(probabilities, centre)

    def summed(self, probabilities: npt.NDArray[Any], centre: npt.NDArray[Any] | None = None) -> Votes:
        """Sums [..., candidates] of the ballots of [..., teachers, candidates]; the centre is [..., candidates]."""
        return self._ballots.summed(probabilities, centre)

    def check(self, sums: npt.NDArray[Any]) -> Votes:
        """Require int64 sums [queries, candidates] that `teachers` ballots can add up to; the error holds no value."""
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
