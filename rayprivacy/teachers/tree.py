"""Add the actors' partial sums in a tree of Ray tasks, where the sums lie.

Each task adds at most FAN_IN sums, so that a machine receives a few arrays [queries, k] and the driver one, whatever
the number of teachers. Tasks are deterministic and may be repeated.
"""

from collections.abc import Sequence
from typing import Any

import ray

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.sealing import Seal
from rayprivacy.teachers.votes import PartialSum, VoteTotal

FAN_IN = 8
_SEAL = Seal(ReleaseError, "nothing was charged or released, run again with --resume")


@_SEAL.around("adding votes")
def _added(*partials: PartialSum) -> PartialSum:
    total = VoteTotal(*partials[0].sums.shape)
    for partial in partials:
        total.add(partial)
    return total.partial


def tree_sum(partials: Sequence[Any]) -> Any:
    """A reference to the sum of at least one partial sum.

    Args:
        partials: references to PartialSums.
    """
    # Actors may hold every CPU of the cluster, and adding takes next to nothing.
    add = ray.remote(_added).options(num_cpus=0, max_retries=3)
    level = list(partials)
    while True:
        level = [add.remote(*level[at : at + FAN_IN]) for at in range(0, len(level), FAN_IN)]
        if len(level) == 1:
            return level[0]
