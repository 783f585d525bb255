"""From the answers of a stack of teachers to its summed votes.

A teacher whose shard held nothing answers like the public student, whatever its kind. A teacher that diverged answers
NaN, and the mechanism replaces it. The number of ballots is the public number of teachers in either case.
"""

import numpy as np
import numpy.typing as npt
import torch

from rayprivacy.models.queries import Queries
from rayprivacy.release.vote import VoteMechanism
from rayprivacy.teachers.kinds.kind import FILLED, State, TeacherKind


def summed_votes(kind: TeacherKind, state: State, queries: Queries, mechanism: VoteMechanism) -> npt.NDArray[np.int64]:
    """Sum over the stack of the teachers' ballots, in fixed point, int64 [queries, k].

    Integers make the sum independent of the order and grouping of teachers.
    """
    sums, at = [], 0
    for answers in kind.answers(state, queries):
        centre = queries.centre[at : at + len(answers)]
        ballots = torch.where(state[FILLED][:, None], answers, centre[:, None])
        sums.append(mechanism.summed(ballots.numpy(), None if mechanism.clip is None else centre.numpy()))
        at += len(answers)
    return np.concatenate(sums)
