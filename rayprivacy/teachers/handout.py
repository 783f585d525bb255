"""The pool of teacher actors, which pull work: one that dies is replaced, and what only it knew is done again.

Teachers are the one thing that Ray Data does not hand out (`work.mapping`): they hold weights and sums between calls.

One handle is one process: Ray restarts nothing here. An actor that cannot be reached is killed before its work is
handed to others, so that nothing it still computes is ever read. New actors get work once they have answered a first
call; hence an actor that a shrunken cluster has no room for delays no other. The limit on losses is public and counts
dead actors; it never looks at data.

A `Handout` decides who gets which piece next, by pure logic, without Ray. An actor gets one piece, and a second one
while there is plenty left. When no piece waits any more, an idle actor does over again what another one has been at for
much longer than any piece took so far: it may be on a slow or crowded machine, or hang. If it is overtaken, its place
goes to a new actor, so that it holds up no later step; if not, what the thief does is of no use. Pieces are
deterministic and leave whole files, so nothing is decided by who was first. What lives in the actor that made it is not
stolen, since it would be there twice.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError

from rayprivacy.teachers.spec import SEAL
from rayprivacy.work.mapping import LOSSES, gave_up, is_loss

AHEAD = 2  # calls an actor may have outstanding: the next one waits where it will run
PATIENCE = 2.0  # times the longest piece so far, after which an actor counts as a straggler
LEAST_PATIENCE_S = 10.0  # and this long at least: a thief may have to load first what a straggler has loaded
POLL_S = 1.0  # how often the clock is looked at where work may be stolen
_LOST = object()  # in place of a result: the process that should have given it is gone


@dataclass(eq=False)
class Worker:
    """One actor process.

    Attributes:
        actor: its handle.
        first_call: its first call of `ready`; None once it has answered.
        open: the number of calls it has not answered.
        since: when it began the piece that it is at.
        holds: pieces whose result lives in this process alone.
    """

    actor: Any
    first_call: Any
    open: int = 0
    since: float = 0.0
    holds: list[Any] = field(default_factory=list)


class Handout:
    """The pieces of one step, no two of them equal; `steals` says whether a piece may be done twice.

    Attributes:
        left: pieces that are not done.
        calls: those that are out, by their call: who has them, and which they are.
    """

    def __init__(self, pieces: Iterable[Any], steals: bool) -> None:
        self._queue: deque[Any] = deque(pieces)
        self._steals = steals
        self._thieves: dict[Any, Worker] = {}
        self._longest = 0.0
        self.left = set(self._queue)
        self.calls: dict[Any, tuple[Worker, Any]] = {}

    @property
    def may_steal(self) -> bool:
        """Whether idle actors have nothing to do but to steal."""
        return self._steals and not self._queue

    def turns(self, workers: Sequence[Worker]) -> Iterator[tuple[Worker, Any]]:
        """Which actor gets which piece now."""
        for calls in range(1, AHEAD + 1):
            for worker in workers:
                plenty = calls == 1 or len(self._queue) > len(workers)
                if self._queue and plenty and worker.first_call is None and worker.open < calls:
                    yield _given(worker), self._queue.popleft()
        if self.may_steal:
            idle = [worker for worker in workers if worker.first_call is None and not worker.open]
            for thief, piece in zip(idle, self._slow(), strict=False):
                self._thieves[piece] = thief
                yield _given(thief), piece

    def _slow(self) -> list[Any]:
        """The pieces of stragglers that no other actor repeats yet."""
        patience = max(PATIENCE * self._longest, LEAST_PATIENCE_S)
        late = time.monotonic() - patience
        return [
            piece
            for worker, piece in self.calls.values()
            if self._longest and worker.since < late and piece in self.left and piece not in self._thieves
        ]

    def answered(self, call: Any) -> tuple[Worker, Any, bool, list[Worker]]:
        """Note an answer; returns who gave it, the piece, whether it is the first, and who was overtaken."""
        worker, piece = self.calls.pop(call)
        now = time.monotonic()
        self._longest = max(self._longest, now - worker.since)
        worker.open -= 1
        worker.since = now
        is_first, stolen = piece in self.left, self._thieves.get(piece) is worker
        self.left.discard(piece)
        late = [owner for owner, other in self.calls.values() if is_first and stolen and other == piece]
        return worker, piece, is_first, late

    def lost(self, worker: Worker) -> None:
        """Hand out again what an actor was at, and what it alone held."""
        for call in [call for call, (owner, _) in self.calls.items() if owner is worker]:
            _, piece = self.calls.pop(call)
            if self._thieves.get(piece) is worker:
                del self._thieves[piece]
            if piece in self.left and all(other != piece for _, other in self.calls.values()):
                self._queue.append(piece)
        self._queue.extend(worker.holds)
        self.left.update(worker.holds)


def _given(worker: Worker) -> Worker:
    if not worker.open:
        worker.since = time.monotonic()
    worker.open += 1
    return worker


class ActorPool:
    """A fixed number of places, each filled with an actor."""

    def __init__(self, start: Callable[[], Any], places: int) -> None:
        self._start = start
        self.workers = [self._new() for _ in range(places)]
        self._losses = 0

    def _new(self) -> Worker:
        actor = self._start()
        return Worker(actor, actor.ready.remote())

    def begin(self) -> None:
        """Begin a step: no actor holds a result, no call of an abandoned step counts, and losses count from zero."""
        self._losses = 0
        for worker in self.workers:
            worker.open = 0
            worker.holds.clear()

    @property
    def held(self) -> set[Any]:
        """The pieces whose result some living actor holds."""
        return {piece for worker in self.workers for piece in worker.holds}

    def work(
        self, step: str, method: str, pieces: Iterable[Any], *shared: Any, kept: bool = False
    ) -> Iterator[tuple[Any, Any]]:
        """Hand out pieces to idle actors; yields (piece, result) as they come, each piece at least once.

        `method` of an actor is called with a piece and what is shared; `step` names the work in messages. With `kept`
        results live in the actor, so that the pieces of one that dies meanwhile are done again. An error of our code,
        or too many dead actors, stop it in one sentence of ours.
        """
        handout = Handout(pieces, steals=not kept)
        while handout.left:
            for worker, piece in handout.turns(self.workers):
                handout.calls[getattr(worker.actor, method).remote(piece, *shared)] = worker, piece
            starting = {worker.first_call: worker for worker in self.workers if worker.first_call is not None}
            patience = POLL_S if handout.may_steal else None
            for call in ray.wait([*handout.calls, *starting], num_returns=1, timeout=patience)[0]:
                worker = starting[call] if call in starting else handout.calls[call][0]
                result = _result(step, call)
                if result is _LOST:
                    self.count_loss(step)
                    self._renew(worker)
                    handout.lost(worker)
                elif call in starting:
                    worker.first_call = None
                else:
                    worker, piece, is_first, overtaken = handout.answered(call)
                    if kept:
                        worker.holds.append(piece)
                    for straggler in overtaken:
                        self._renew(straggler)
                        handout.lost(straggler)
                    if is_first:
                        yield piece, result

    def _renew(self, worker: Worker) -> None:
        """Give an actor's place to a new one."""
        ray.kill(worker.actor)  # it may only be out of reach: nothing it still computes is to be read
        self.workers[self.workers.index(worker)] = self._new()

    def count_loss(self, step: str) -> None:
        """Count a loss; every place has so many in one step."""
        self._losses += 1
        if self._losses > LOSSES * len(self.workers):
            raise gave_up(step, SEAL)

    def check_alive(self, step: str) -> None:
        """Replace the dead among the actors that hold results."""
        calls = {worker.actor.ready.remote(): worker for worker in self.workers if worker.holds}
        for call, worker in calls.items():
            if _result(step, call) is _LOST:
                self.count_loss(step)
                self._renew(worker)

    def close(self) -> None:
        """Stop all actors."""
        for worker in self.workers:
            ray.kill(worker.actor)


def _result(step: str, call: Any) -> Any:
    """The result of a call, or `_LOST`; an error of our code in the actor becomes one sentence of ours."""
    try:
        return ray.get(call)
    except RayError as error:
        failure = None if is_loss(error) else SEAL.unwrap(step, error)
    if failure is None:
        return _LOST
    raise failure  # outside the except block, so that Ray's text does not come along
