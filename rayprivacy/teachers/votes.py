"""A vote from question to sum: what all teachers are asked, the ballots of a block, and sums put together exactly once.

A *question* is some queries and the mechanism that sums their ballots; all of it is public. `summed_votes` turns the
answers of a block of teachers into its votes. A teacher whose shard held nothing answers like the public student,
whatever its kind. A teacher that diverged answers NaN, and the mechanism replaces it. The number of ballots is the
public number of teachers in either case.

Only a partial sum [queries, k] and the ids of the teachers in it leave an actor. A total is complete when every
teacher id from 0 to M - 1 is in it once: a late duplicate of the same teachers is ignored when it is identical and
refused when it is not, and a missing teacher makes the total unusable (the gate checks the manifest again before it
charges).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.private import digest_array, digest_json
from rayprivacy.models.features import Queries
from rayprivacy.release.votes import VoteMechanism
from rayprivacy.teachers.head_kinds import FILLED, State, TeacherKind


@dataclass(frozen=True)
class Question:
    """One question; everything in it is public."""

    queries: Queries  # what is asked
    mechanism: VoteMechanism  # how a distribution becomes a ballot
    rows: Path | None  # file of the encoded pseudo-sentences that the queries point into; head kinds do without it
    digest: str  # names the question, so that an actor never adds the votes of one question to those of another

    @staticmethod
    def of(queries: Queries, mechanism: VoteMechanism, rows: Path | None = None, asking: int = 0) -> "Question":
        """Name a question by its content and by `asking`, how many these actors were asked before."""
        named = digest_json([queries.digest, mechanism.parameters, str(rows), asking])
        return Question(queries, mechanism, rows, named)


def summed_votes(kind: TeacherKind, state: State, queries: Queries, mechanism: VoteMechanism) -> npt.NDArray[np.int64]:
    """Sum of the ballots of one block of teachers, in fixed point, int64 [queries, k]: the order cannot matter."""
    at = 0
    sums = []
    for answers in kind.answers(state, queries):
        centre = queries.centre[at : at + len(answers)]
        ballots = torch.where(state[FILLED][:, None], answers, centre[:, None])
        sums.append(mechanism.summed(ballots.cpu().numpy(), None if mechanism.clip is None else centre.cpu().numpy()))
        at += len(answers)
    return np.concatenate(sums)


@dataclass(frozen=True)
class PartialSum:
    """The summed votes of some teachers."""

    teachers: tuple[int, ...]  # the teacher ids in the sum
    sums: npt.NDArray[np.int64]  # fixed-point votes, int64 [queries, k]


class VoteTotal:
    """Adds partial sums in any order, each teacher exactly once; holds one array, however many it has added."""

    def __init__(self, queries: int, candidates: int) -> None:
        self.sums = np.zeros((queries, candidates), dtype=np.int64)
        self._seen: dict[tuple[int, ...], str] = {}  # by teachers: digest of the sums
        self.teachers: set[int] = set()

    def add(self, partial: PartialSum) -> None:
        """Add one partial sum once; refused are a repeat that differs, and a teacher who is counted already."""
        if partial.sums.shape != self.sums.shape:
            raise ReleaseError(f"a partial sum has shape {partial.sums.shape}, not {self.sums.shape}: release nothing.")
        content = digest_array(partial.sums)
        known = self._seen.get(partial.teachers)
        if known is not None:
            if known != content:
                raise ReleaseError(
                    f"{len(partial.teachers)} teachers voted twice and differently: retrain them, release nothing."
                )
            return
        overlap = self.teachers.intersection(partial.teachers)
        if overlap or len(set(partial.teachers)) != len(partial.teachers):
            raise ReleaseError(f"{len(overlap) or 'some'} teachers are in two partial sums: release nothing.")
        self.sums += partial.sums
        self._seen[partial.teachers] = content
        self.teachers.update(partial.teachers)

    @property
    def manifest(self) -> tuple[int, ...]:
        """The teacher ids in the total, ascending."""
        return tuple(sorted(self.teachers))

    @property
    def partial(self) -> PartialSum:
        """The total as one summand of a larger one."""
        return PartialSum(self.manifest, self.sums)
