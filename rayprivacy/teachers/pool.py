"""Teacher actors on Ray: hand out stacks, survive lost actors, gather partial sums.

Work is pulled: an idle actor gets the next group of stacks, so a skewed stack delays nobody. A dead actor is restarted
by Ray and its call repeated (calls are deterministic and idempotent, see group). The retry limit counts actor deaths
only and never looks at data.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError
from ray.util import ActorPool

from rayprivacy.core.artifacts import Private
from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.sealing import Seal
from rayprivacy.models.queries import Queries
from rayprivacy.release.gate import VoteManifest
from rayprivacy.release.vote import VoteMechanism
from rayprivacy.teachers.group import GroupSpec, TeacherGroup
from rayprivacy.teachers.settings import ResourcesConfig
from rayprivacy.teachers.votes import PartialSum, VoteTotal

ACTOR_RETRIES = 3
_SEAL = Seal(ReleaseError, "nothing was charged or released, run again with --resume")


class _SealedGroup:
    """A TeacherGroup whose foreign errors carry a type and no message: messages may quote private text."""

    @_SEAL.around("starting a teacher group")
    def __init__(self, spec: GroupSpec) -> None:
        self._group = TeacherGroup(spec)

    @_SEAL.around("training teachers")
    def train(self, part: int) -> int:
        return self._group.train(part)

    @_SEAL.around("voting")
    def vote(self, parts: Sequence[int], queries: Queries, mechanism: VoteMechanism) -> PartialSum:
        return self._group.vote(parts, queries, mechanism)


class TeacherPool:
    """A set of teacher actors over one ensemble."""

    def __init__(self, spec: GroupSpec, resources: ResourcesConfig) -> None:
        self._spec, self._resources = spec, resources
        count = resources.actors or max(1, int(ray.cluster_resources().get("CPU", 1) / resources.cpus_per_actor))
        options = {
            "num_cpus": resources.cpus_per_actor,
            "max_restarts": ACTOR_RETRIES,
            "max_task_retries": ACTOR_RETRIES,
        }
        make = ray.remote(_SealedGroup).options(**options)
        self._actors: list[Any] = [make.remote(spec) for _ in range(min(count, spec.teachers.parts))]

    def train(self) -> Iterator[int]:
        """Train every stack that has no marker yet; yields stack numbers as they finish."""
        yield from self._map("training teachers", "train", list(range(self._spec.teachers.parts)))

    def vote(self, queries: Queries, mechanism: VoteMechanism) -> tuple[Private[Any], VoteManifest]:
        """Ask every teacher; returns the private total and its manifest.

        Raises:
            ReleaseError: a stack voted twice and differently, or a teacher is counted twice.
        """
        size, group, parts = self._resources.query_batch, self._resources.group, range(self._spec.teachers.parts)
        totals = []
        for start in range(0, len(queries), size):
            block = queries.rows(start, start + size)
            totals.append(
                self._total(ray.put(block), len(block), mechanism, [parts[i : i + group] for i in parts[::group]])
            )
        manifests = {total.manifest for total in totals}
        if len(manifests) != 1:
            raise ReleaseError("blocks of queries were answered by different teachers: release nothing, run again.")
        return Private(np.concatenate([total.sums for total in totals])), VoteManifest(manifests.pop())

    def _total(self, block: Any, queries: int, mechanism: VoteMechanism, groups: list[range]) -> VoteTotal:
        total = VoteTotal(queries, mechanism.candidates)
        for partial in self._map("voting", "vote", [tuple(group) for group in groups], block, mechanism):
            total.add(partial)
        return total

    def _map(self, step: str, method: str, work: list[Any], *shared: Any) -> Iterator[Any]:
        """Hand out pieces of work to idle actors; a failure leaves as one sentence of ours."""
        results = ActorPool(self._actors).map_unordered(
            lambda actor, piece: getattr(actor, method).remote(piece, *shared), work
        )
        try:
            yield from results
            return
        except RayError as error:
            failure = _SEAL.unwrap(step, error)
        raise failure

    def close(self) -> None:
        """Stop the actors."""
        for actor in self._actors:
            ray.kill(actor)


@contextmanager
def teacher_pool(spec: GroupSpec, resources: ResourcesConfig) -> Iterator[TeacherPool]:
    """A pool that stops its actors when the block ends."""
    pool = TeacherPool(spec, resources)
    try:
        yield pool
    finally:
        pool.close()
