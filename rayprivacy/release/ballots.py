"""Ballots: what one teacher's distribution over the candidates becomes on the integer grid, and how far two can differ.

Votes are rounded to integers (steps of 2^-20) before they are summed, so that sums do not depend on their order and the
noise can be exact. A teacher hands in one of

- its distribution p (SeqPATE; Tian et al., NeurIPS 2022);
- "top1": the one-hot of its most likely candidate, the first of equals (their ablation "-Merge_P");
- with `clip` = r, either of them centred: the deviation from a public distribution c (the student's), shrunk to an L2
  norm of at most r.

Two sub-distributions of total at most 1 differ by at most sqrt(2) in L2 and by 2 in L1. Centring shifts both alike, and
shrinking is the projection on the ball of radius r, which never takes two points further apart; two points of the ball
are at most 2r apart. So centred ballots differ by at most min(2r, sqrt(2)). That holds for ANY two ballots of a
teacher, hence for a user replaced, added or removed: a teacher left without data votes the public model, which is just
another ballot. Rounding moves each of the k coordinates of a difference by at most one step.

What is no sub-distribution (NaN, a negative entry, a total above 1) becomes a constant: the uniform distribution, or
the centre itself, whose deviation is zero.

>>> Ballot(2).quantise(np.array([[1.0, 0.0], [float("nan"), 0.5]])).tolist()
[[1048576, 0], [524288, 524288]]
>>> Ballot(2, clip=0.5).quantise(np.array([[0.75, 0.25], [float("nan"), 0.5]]), np.array([0.5, 0.5])).tolist()
[[262144, -262144], [0, 0]]
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rayprivacy.core.errors import ReleaseError

SCALE = 2**20
SUM_TOLERANCE = 1e-6  # how far above 1 a distribution may sum; the differences cover it
CLIP_RANGE = (1e-3, 2.0)  # below, the grid is too coarse; above, nothing is ever clipped

BallotKind = Literal["distribution", "top1"]
Votes = npt.NDArray[np.int64]
_Real = npt.NDArray[Any]


@dataclass(frozen=True)
class Ballot:
    """One teacher's vote on one query.

    Attributes:
        candidates: candidate tokens per query.
        kind: the whole distribution, or its most likely candidate.
        clip: L2 radius r of centred votes, as a probability; None for votes that are not centred.
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
