"""Teacher actors on Ray: train every stack, ask every teacher, and bring home one sum.

Work is pulled (see crew), so that a skewed stack delays nobody, and sums are added where they lie (see tree): what
travels, and what the driver holds, does not grow with the number of teachers, but for the list of their ids. Actors are
spread over the nodes. They map the base's file where its number format is `model.dtype`, and then a node holds it once;
otherwise each converts it for itself.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from rayprivacy.core.artifacts import Private
from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.sealing import Seal
from rayprivacy.models.queries import Queries
from rayprivacy.release.manifest import VoteManifest
from rayprivacy.release.vote import VoteMechanism
from rayprivacy.teachers.crew import Crew, is_loss
from rayprivacy.teachers.group import TeacherGroup
from rayprivacy.teachers.question import Question
from rayprivacy.teachers.settings import ResourcesConfig
from rayprivacy.teachers.spec import GroupSpec
from rayprivacy.teachers.tree import tree_sum
from rayprivacy.teachers.votes import PartialSum

_SEAL = Seal(ReleaseError, "nothing was charged or released, run again with --resume")
_TRAINING, _VOTING = "training teachers", "voting"


class _SealedGroup:
    """A TeacherGroup whose foreign errors carry a type and no message: messages may quote private text."""

    @_SEAL.around("starting a teacher group")
    def __init__(self, spec: GroupSpec) -> None:
        self._group = TeacherGroup(spec)
        self._question: Question | None = None

    def ready(self) -> None:
        """Answer, to say that the process is there."""

    @_SEAL.around(_TRAINING)
    def train(self, part: int) -> int:
        return self._group.train(part)

    @_SEAL.around(_VOTING)
    def vote(self, parts: Sequence[int], digest: str, boxed: Sequence[Any]) -> tuple[int, ...]:
        # In its box the reference arrives as such: megabytes of queries are unpacked once for a question.
        if self._question is None or self._question.digest != digest:
            self._question = ray.get(boxed[0])
        return self._group.vote(parts, self._question)

    @_SEAL.around(_VOTING)
    def collect(self, digest: str) -> PartialSum:
        return self._group.collect(digest)


class TeacherPool:
    """A set of teacher actors over one ensemble."""

    def __init__(self, spec: GroupSpec, resources: ResourcesConfig) -> None:
        self._spec, self._resources, self._askings = spec, resources, count()
        places = resources.actors or max(1, int(ray.cluster_resources().get("CPU", 1) / resources.cpus_per_actor))
        hire = ray.remote(_SealedGroup).options(num_cpus=resources.cpus_per_actor, scheduling_strategy="SPREAD")
        self.crew = Crew(lambda: hire.remote(spec), min(places, spec.teachers.parts))

    def train(self) -> Iterator[int]:
        """Train every stack that has no marker yet; yields stack numbers as they finish."""
        self.crew.begin()
        for part, _ in self.crew.work(_TRAINING, "train", range(self._spec.teachers.parts)):
            yield part

    def vote(
        self, queries: Queries, mechanism: VoteMechanism, rows: Path | None = None
    ) -> tuple[Private[Any], VoteManifest]:
        """Ask every teacher; returns the private total and its manifest.

        Args:
            queries: what is asked.
            mechanism: how a distribution becomes a ballot.
            rows: file of the encoded pseudo-sentences that the queries point into; head kinds do without it.

        Raises:
            ReleaseError: a stack voted twice and differently, or a teacher is counted twice; or too many actors died.
        """
        size = self._resources.query_batch
        blocks = (queries.rows(start, start + size) for start in range(0, len(queries), size))
        totals = [self._answer(Question.of(block, mechanism, rows, next(self._askings))) for block in blocks]
        manifests = {total.teachers for total in totals}
        if len(manifests) != 1:
            raise ReleaseError("blocks of queries were answered by different teachers: release nothing, run again.")
        return Private(np.concatenate([total.sums for total in totals])), VoteManifest(manifests.pop())

    def _answer(self, question: Question) -> PartialSum:
        """Ask until every stack is in the sum."""
        self.crew.begin()
        group, parts = self._resources.group, range(self._spec.teachers.parts)
        pieces, asked = [tuple(parts[at : at + group]) for at in parts[::group]], [ray.put(question)]
        while True:
            held = self.crew.held
            missing = [piece for piece in pieces if piece not in held]
            for _ in self.crew.work(_VOTING, "vote", missing, question.digest, asked, kept=True):
                pass
            total = self._collected(question.digest)
            if total is not None:
                return total  # should a stack be missing all the same, the gate refuses the manifest

    def _collected(self, digest: str) -> PartialSum | None:
        """The sum of what the actors hold; None if some of it was lost on the way."""
        holders = [worker.actor for worker in self.crew.workers if worker.holds]
        try:
            total: PartialSum = ray.get(tree_sum([actor.collect.remote(digest) for actor in holders]))
            return total
        except RayError as error:
            failure = None if is_loss(error) else _SEAL.unwrap(_VOTING, error)
        if failure is not None:
            raise failure
        self.crew.lose(_VOTING)
        self.crew.roll_call(_VOTING)
        return None

    def close(self) -> None:
        """Stop the actors."""
        self.crew.close()


@contextmanager
def teacher_pool(spec: GroupSpec, resources: ResourcesConfig) -> Iterator[TeacherPool]:
    """A pool that stops its actors when the block ends."""
    pool = TeacherPool(spec, resources)
    try:
        yield pool
    finally:
        pool.close()
