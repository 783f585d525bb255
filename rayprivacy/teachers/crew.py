"""Actors that may die: they pull work, the dead are replaced, and what only they knew is done again.

One handle is one process: Ray restarts nothing here. An actor that cannot be reached is killed before its work is
handed to others, so that nothing it still computes is ever read. New actors get work once they have answered a first
call, hence an actor that a shrunken cluster has no room for delays nobody. The limit on losses is public and counts
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


@dataclass(eq=False)
class Worker:
    """One actor process.

    Attributes:
        actor: its handle.
        hello: its first call; None once it has answered.
        open: calls it has not answered.
        holds: pieces whose result lives in this process alone.
    """

    actor: Any
    hello: Any
    open: int = 0
    holds: list[Any] = field(default_factory=list)


class Crew:
    """A fixed number of places, each filled with an actor."""

    def __init__(self, hire: Callable[[], Any], places: int) -> None:
        """Fill the places.

        Args:
            hire: makes an actor with a method `ready`.
            places: how many.
        """
        self._hire = hire
        self.workers = [self._new() for _ in range(places)]
        self._losses = 0

    def _new(self) -> Worker:
        actor = self._hire()
        return Worker(actor, actor.ready.remote())

    def begin(self) -> None:
        """Start a step: nobody holds a result, no call of an abandoned step counts, and losses count from zero."""
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
        """Hand out pieces to whoever is free; yields (piece, result) as they come.

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
            hellos = {worker.hello: (worker, None) for worker in self.workers if worker.hello is not None}
            done = ray.wait([*calls, *hellos], num_returns=1)[0][0]
            worker, piece = (hellos | calls)[done]
            answer = self._answer(step, worker, done)
            if worker not in self.workers:  # it died: its pieces go back
                back = [call for call, (owner, _) in calls.items() if owner is worker]
                queue.extend(calls.pop(call)[1] for call in back)
                queue.extend(worker.holds)
            elif done in calls:
                del calls[done]
                worker.open -= 1
                worker.holds += [piece] if kept else []
                yield piece, answer
            else:
                worker.hello = None

    def _turns(self, queue: deque[Any]) -> Iterator[tuple[Worker, Any]]:
        """Who gets what now: one call each, and a second one while there is plenty left."""
        for calls in range(1, AHEAD + 1):
            for worker in self.workers:
                plenty = calls == 1 or len(queue) > len(self.workers)
                if queue and plenty and worker.hello is None and worker.open < calls:
                    worker.open += 1
                    yield worker, queue.popleft()

    def _answer(self, step: str, worker: Worker, call: Any) -> Any:
        """The result of a finished call; if its actor is lost, the actor is replaced."""
        try:
            return ray.get(call)
        except RayError as error:
            failure = None if is_loss(error) else _SEAL.unwrap(step, error)
        if failure is not None:
            raise failure
        self.replace(step, worker)
        return None

    def replace(self, step: str, worker: Worker) -> None:
        """Give a dead actor's place to a new one.

        Raises:
            ReleaseError: the limit on losses is reached.
        """
        ray.kill(worker.actor)  # it may only be out of reach: nothing it still computes is to be read
        self.lose(step)
        self.workers[self.workers.index(worker)] = self._new()

    def lose(self, step: str) -> None:
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

    def roll_call(self, step: str) -> None:
        """Replace the dead among those who hold results."""
        calls = {worker.actor.ready.remote(): worker for worker in self.workers if worker.holds}
        for call, worker in calls.items():
            self._answer(step, worker, call)

    def close(self) -> None:
        """Stop all actors."""
        for worker in self.workers:
            ray.kill(worker.actor)


def is_loss(error: BaseException) -> bool:
    """Whether Ray lost a process or an object, rather than our code having raised something."""
    if isinstance(error, RayActorError) and error.actor_init_failed:
        return False
    while isinstance(error, RayTaskError):
        error = error.cause
    return isinstance(error, RayError)
