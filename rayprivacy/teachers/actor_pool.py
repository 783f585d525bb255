"""A pool of Ray actors that pull work: an actor that dies is replaced, and what only it knew is done again.

One handle is one process: Ray restarts nothing here. An actor that cannot be reached is killed before its work is
handed to others, so that nothing it still computes is ever read. New actors get work once they have answered a first
call; hence an actor that a shrunken cluster has no room for delays no other. The limit on losses is public and counts
dead actors; it never looks at data.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.sealing import Seal

AHEAD = 2  # calls an actor may have outstanding: the next one waits where it will run
LOSSES = 4  # deaths per place in one step, after which the cluster is not worth waiting for
_SEAL = Seal(ReleaseError, "nothing was charged or released, run again with --resume")
_LOST = object()  # in place of a result: the process that should have given it is gone


@dataclass(eq=False)
class Worker:
    """One actor process.

    Attributes:
        actor: its handle.
        first_call: its first call of `ready`; None once it has answered.
        open: the number of calls it has not answered.
        holds: pieces whose result lives in this process alone.
    """

    actor: Any
    first_call: Any
    open: int = 0
    holds: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class _Ready:
    """A new actor has answered its first call."""

    worker: Worker


@dataclass(frozen=True)
class _Answered:
    """An actor has done a piece."""

    worker: Worker
    call: Any
    result: Any


@dataclass(frozen=True)
class _Died:
    """An actor is lost, with every call it has not answered."""

    worker: Worker


class ActorPool:
    """A fixed number of places, each filled with an actor."""

    def __init__(self, start: Callable[[], Any], places: int) -> None:
        """Fill the places.

        Args:
            start: starts an actor with a method `ready`.
            places: the number of actors.
        """
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
        """Hand out pieces to idle actors; yields (piece, result) as they come.

        Args:
            step: what is being done, for messages.
            method: of the actors, called with a piece and what is shared.
            pieces: the work; each is done at least once.
            shared: further arguments.
            kept: whether results live in the actor, so that pieces done by an actor that dies meanwhile are done again.

        Raises:
            RayPrivacyError: an actor failed, in one sentence of ours; or too many died.
        """
        queue: deque[Any] = deque(pieces)
        calls: dict[Any, tuple[Worker, Any]] = {}
        while queue or calls:
            for worker, piece in self._turns(queue):
                calls[getattr(worker.actor, method).remote(piece, *shared)] = worker, piece
            match self._next(step, calls):
                case _Ready(worker):
                    worker.first_call = None
                case _Answered(worker, call, result):
                    _, piece = calls.pop(call)
                    worker.open -= 1
                    if kept:
                        worker.holds.append(piece)
                    yield piece, result
                case _Died(worker):
                    self._replace(step, worker)
                    unanswered = [call for call, (owner, _) in calls.items() if owner is worker]
                    queue.extend(calls.pop(call)[1] for call in unanswered)
                    queue.extend(worker.holds)

    def _turns(self, queue: deque[Any]) -> Iterator[tuple[Worker, Any]]:
        """Which actor gets which piece now: one call each, and a second one while there is plenty left."""
        for calls in range(1, AHEAD + 1):
            for worker in self.workers:
                plenty = calls == 1 or len(queue) > len(self.workers)
                if queue and plenty and worker.first_call is None and worker.open < calls:
                    worker.open += 1
                    yield worker, queue.popleft()

    def _next(self, step: str, calls: dict[Any, tuple[Worker, Any]]) -> _Ready | _Answered | _Died:
        """Wait for one call, the first calls of new actors among them, and say what came of it."""
        starting = {worker.first_call: worker for worker in self.workers if worker.first_call is not None}
        call = ray.wait([*calls, *starting], num_returns=1)[0][0]
        worker = starting[call] if call in starting else calls[call][0]
        result = _result(step, call)
        if result is _LOST:
            return _Died(worker)
        return _Ready(worker) if call in starting else _Answered(worker, call, result)

    def _replace(self, step: str, worker: Worker) -> None:
        """Give a dead actor's place to a new one.

        Raises:
            ReleaseError: the limit on losses is reached.
        """
        ray.kill(worker.actor)  # it may only be out of reach: nothing it still computes is to be read
        self.count_loss(step)
        self.workers[self.workers.index(worker)] = self._new()

    def count_loss(self, step: str) -> None:
        """Count a loss.

        Raises:
            ReleaseError: the limit on losses is reached.
        """
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
                self._replace(step, worker)

    def close(self) -> None:
        """Stop all actors."""
        for worker in self.workers:
            ray.kill(worker.actor)


def _result(step: str, call: Any) -> Any:
    """The result of a call, or `_LOST`.

    Raises:
        RayPrivacyError: our code failed in the actor; in one sentence of ours.
    """
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
