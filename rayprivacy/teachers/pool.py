"""A pool of teacher actors on Ray: it trains and asks every teacher, and brings home one sum.

Work is pulled in pieces (see `spec`, `handout`), so that a skewed one delays no other, and sums are added where
they lie: what travels, and what the driver holds, does not grow with the number of teachers, but for the list of their
ids. The actors' sums are added in a tree of Ray tasks, each of which adds at most FAN_IN, so that a machine receives a
few arrays [queries, k] and the driver one. Tasks are deterministic and may be repeated.

Actors are spread over the nodes. They map the base's file where its number format is `model.dtype`, and then a node
holds it once; otherwise each converts it for itself.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from rayprivacy.core.console import Told, nobody
from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.private import Private
from rayprivacy.models.features import Queries
from rayprivacy.release.gate import VoteManifest
from rayprivacy.release.votes import VoteMechanism
from rayprivacy.teachers.group import TeacherGroup
from rayprivacy.teachers.handout import ActorPool
from rayprivacy.teachers.settings import ResourcesConfig
from rayprivacy.teachers.spec import SEAL, GroupSpec, actor_options, places, training_pieces, voting_pieces
from rayprivacy.teachers.votes import PartialSum, Question, VoteTotal
from rayprivacy.work.mapping import is_loss

_TRAINING = "training teachers"
_VOTING = "voting"
QUERY_BATCH = 1024  # queries in one vote call, a multiple of QUERY_ROWS
FAN_IN = 8


class _SealedGroup:
    """A TeacherGroup whose foreign errors carry a type and no message: messages may quote private text."""

    @SEAL.around("starting a teacher group")
    def __init__(self, spec: GroupSpec) -> None:
        self._group = TeacherGroup(spec)
        self._question: Question | None = None

    def ready(self) -> None:
        """Answer, to say that the process is there."""

    @SEAL.around(_TRAINING)
    def train(self, piece: range) -> None:
        self._group.train(piece)

    @SEAL.around(_VOTING)
    def vote(self, piece: range, digest: str, boxed: Sequence[Any]) -> None:
        # In its box the reference arrives as such: megabytes of queries are unpacked once for a question.
        if self._question is None or self._question.digest != digest:
            self._question = ray.get(boxed[0])
        self._group.vote(piece, self._question)

    @SEAL.around(_VOTING)
    def collect(self, digest: str) -> PartialSum:
        return self._group.collect(digest)


class TeacherPool:
    """A set of teacher actors over one ensemble."""

    def __init__(self, spec: GroupSpec, resources: ResourcesConfig) -> None:
        self._spec, self._askings = spec, count()
        actor = ray.remote(_SealedGroup).options(**actor_options(resources))
        self.actors = ActorPool(lambda: actor.remote(spec), min(places(resources), spec.teachers.count))

    def train(self) -> Iterator[range]:
        """Train every teacher that is not in the workspace; yields pieces of the ensemble as they finish."""
        self.actors.begin()
        pieces = training_pieces(self._spec.teachers, len(self.actors.workers))
        for piece, _ in self.actors.work(_TRAINING, "train", pieces):
            yield piece

    def vote(
        self, queries: Queries, mechanism: VoteMechanism, rows: Path | None = None, progress: Told = nobody
    ) -> tuple[Private[Any], VoteManifest]:
        """Ask every teacher; returns the private total and its manifest.

        `rows` is the file of the encoded pseudo-sentences that queries point into; head kinds do without it. `progress`
        counts the queries that all teachers have answered. A teacher who voted twice and differently, or is counted
        twice, is refused.
        """
        totals = []
        for start in range(0, len(queries), QUERY_BATCH):
            progress(start)
            block = queries.rows(start, start + QUERY_BATCH)
            totals.append(self._answer(Question.of(block, mechanism, rows, next(self._askings))))
        progress(len(queries))
        manifests = {total.teachers for total in totals}
        if len(manifests) != 1:
            raise ReleaseError("blocks of queries were answered by different teachers: release nothing, run again.")
        return Private(np.concatenate([total.sums for total in totals])), VoteManifest(manifests.pop())

    def _answer(self, question: Question) -> PartialSum:
        self.actors.begin()
        pieces = voting_pieces(self._spec.teachers, len(self.actors.workers))
        asked = [ray.put(question)]
        while True:
            held = self.actors.held
            missing = [piece for piece in pieces if piece not in held]
            for _ in self.actors.work(_VOTING, "vote", missing, question.digest, asked, kept=True):
                pass
            total = self._collected(question.digest)
            if total is not None:
                return total  # should one be missing all the same, the gate refuses the manifest

    def _collected(self, digest: str) -> PartialSum | None:
        """The sum of what the actors hold; None if some of it was lost on the way."""
        holders = [worker.actor for worker in self.actors.workers if worker.holds]
        try:
            total: PartialSum = ray.get(tree_sum([actor.collect.remote(digest) for actor in holders]))
            return total
        except RayError as error:
            failure = None if is_loss(error) else SEAL.unwrap(_VOTING, error)
        if failure is not None:
            raise failure
        self.actors.count_loss(_VOTING)
        self.actors.check_alive(_VOTING)
        return None

    def close(self) -> None:
        """Stop the actors."""
        self.actors.close()


@contextmanager
def teacher_pool(spec: GroupSpec, resources: ResourcesConfig) -> Iterator[TeacherPool]:
    """A pool that stops its actors when the block ends."""
    pool = TeacherPool(spec, resources)
    try:
        yield pool
    finally:
        pool.close()


@SEAL.around("adding votes")
def _added(*partials: PartialSum) -> PartialSum:
    total = VoteTotal(*partials[0].sums.shape)
    for partial in partials:
        total.add(partial)
    return total.partial


def tree_sum(partials: Sequence[Any]) -> Any:
    """A reference to the sum of at least one partial sum."""
    # Actors may hold every CPU of the cluster, and adding takes next to nothing.
    add = ray.remote(_added).options(num_cpus=0, max_retries=3)
    level = list(partials)
    while True:
        level = [add.remote(*level[at : at + FAN_IN]) for at in range(0, len(level), FAN_IN)]
        if len(level) == 1:
            return level[0]
