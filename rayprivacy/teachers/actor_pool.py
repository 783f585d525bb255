"""A pool of Ray actors that pull work: an actor that dies is replaced, and what only it knew is done again.

One handle is one process: Ray restarts nothing here. An actor that cannot be reached is killed before its work is
handed to others, so that nothing it still computes is ever read. New actors get work once they have answered a first
call; hence an actor that a shrunken cluster has no room for delays no other. Which actor gets which piece, and which
pieces of stragglers are done again, is decided by `handout`. The limit on losses is public and counts dead actors; it
never looks at data.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.sealing import Seal
from rayprivacy.teachers.handout import Handout, Worker

POLL_S = 1.0  # how often the clock is looked at where work may be stolen
LOSSES = 4  # deaths per place in one step, after which the cluster is not worth waiting for
_SEAL = Seal(ReleaseError, "nothing was charged or released, run again with --resume")
_LOST = object()  # in place of a result: the process that should have given it is gone


@dataclass(frozen=True)
class _Ready:
    """A new actor has answered its first call."""

    worker: Worker


@dataclass(frozen=True)
class _Answered:
    """An actor has done a piece."""

    call: Any
    result: Any


@dataclass(frozen=True)
class _Died:
    """An actor is lost, with every call it has not answered."""

    worker: Worker


class ActorPool:
    """A fixed number of places, each filled with an actor."""

    def __init__(self, start: Callable[[], Any], places: int) -> None:
        """Fill the places."""
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
            match self._next(step, handout.calls, POLL_S if handout.may_steal else None):
                case _Ready(worker):
                    worker.first_call = None
                case _Answered(call, result):
                    worker, piece, is_first, overtaken = handout.answered(call)
                    if kept:
                        worker.holds.append(piece)
                    for straggler in overtaken:
                        self._renew(straggler)
                        handout.lost(straggler)
                    if is_first:
                        yield piece, result
                case _Died(worker):
                    self.count_loss(step)
                    self._renew(worker)
                    handout.lost(worker)

    def _next(
        self, step: str, calls: dict[Any, tuple[Worker, Any]], patience: float | None
    ) -> _Ready | _Answered | _Died | None:
        """Wait for one call, the first calls of new actors among them, and say what came of it; None: nothing yet."""
        starting = {worker.first_call: worker for worker in self.workers if worker.first_call is not None}
        answered, _ = ray.wait([*calls, *starting], num_returns=1, timeout=patience)
        if not answered:
            return None
        call = answered[0]
        worker = starting[call] if call in starting else calls[call][0]
        result = _result(step, call)
        if result is _LOST:
            return _Died(worker)
        return _Ready(worker) if call in starting else _Answered(call, result)

    def _renew(self, worker: Worker) -> None:
        """Give an actor's place to a new one."""
        ray.kill(worker.actor)  # it may only be out of reach: nothing it still computes is to be read
        self.workers[self.workers.index(worker)] = self._new()

    def count_loss(self, step: str) -> None:
        """Count a loss."""
        self._losses += 1
        if self._losses > LOSSES * len(self.workers):
            raise ReleaseError(
                f"{step} lost {self._losses} actors: check the memory of the machines; nothing was charged or released,"
                " run again with --resume."
            )

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
        failure = None if is_loss(error) else _SEAL.unwrap(step, error)
    if failure is None:
        return _LOST
    raise failure  # outside the except block, so that Ray's text does not come along


def is_loss(error: BaseException) -> bool:
    """Whether Ray lost a process or an object, rather than our code having raised something."""
    if isinstance(error, RayActorError) and error.actor_init_failed:
        return False
    while isinstance(error, RayTaskError):
        error = error.cause
    return isinstance(error, RayError)
