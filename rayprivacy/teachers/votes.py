"""Partial sums of votes, and putting them together exactly once.

Only a partial sum [queries, k] and the ids of the teachers in it leave an actor. A total is complete when every
teacher id from 0 to M - 1 is in it once: a late duplicate of the same parts is ignored when it is identical and refused
when it is not, and a missing part makes the total unusable (the gate checks the manifest again before it charges).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rayprivacy.core.artifacts import digest_array
from rayprivacy.core.errors import ReleaseError


@dataclass(frozen=True)
class PartialSum:
    """The summed votes of some teachers.

    Attributes:
        parts: the stacks in the sum.
        teachers: the teacher ids in the sum.
        sums: fixed-point votes, int64 [queries, k].
    """

    parts: tuple[int, ...]
    teachers: tuple[int, ...]
    sums: npt.NDArray[np.int64]


class VoteTotal:
    """Adds partial sums in any order, each stack exactly once; holds one array, however many it has added."""

    def __init__(self, queries: int, candidates: int) -> None:
        self.sums = np.zeros((queries, candidates), dtype=np.int64)
        self._seen: dict[tuple[int, ...], tuple[tuple[int, ...], str]] = {}  # by parts: teachers, digest of the sums
        self._teachers: set[int] = set()

    def add(self, partial: PartialSum) -> None:
        """Add one partial sum; an identical repeat changes nothing.

        Raises:
            ReleaseError: a teacher is already counted in another sum, or a repeat differs.
        """
        if partial.sums.shape != self.sums.shape:
            raise ReleaseError(f"a partial sum has shape {partial.sums.shape}, not {self.sums.shape}: release nothing.")
        content, known = (partial.teachers, digest_array(partial.sums)), self._seen.get(partial.parts)
        if known is not None:
            if known != content:
                raise ReleaseError(
                    f"stacks {partial.parts} voted twice and differently: retrain them, release nothing."
                )
            return
        overlap = self._teachers.intersection(partial.teachers)
        if overlap or len(set(partial.teachers)) != len(partial.teachers):
            raise ReleaseError(f"{len(overlap) or 'some'} teachers are in two partial sums: release nothing.")
        self.sums += partial.sums
        self._seen[partial.parts] = content
        self._teachers.update(partial.teachers)

    @property
    def parts(self) -> tuple[int, ...]:
        """The stacks in the total, ascending."""
        return tuple(sorted(part for parts in self._seen for part in parts))

    @property
    def manifest(self) -> tuple[int, ...]:
        """The teacher ids in the total, ascending."""
        return tuple(sorted(self._teachers))

    @property
    def partial(self) -> PartialSum:
        """The total as one summand of a larger one."""
        return PartialSum(self.parts, self.manifest, self.sums)
