"""Which actor gets which piece next, and when an idle actor repeats a slow actor's piece. Pure logic, no Ray.

An actor gets one piece, and a second one while there is plenty left. When no piece waits any more, an idle actor does
over again what another one has been at for much longer than any piece took so far: it may be on a slow or crowded
machine, or hang. If it is overtaken, its place goes to a new actor, so that it holds up no later step; if not, what the
thief does is of no use. Pieces are deterministic and leave whole files, so nothing is decided by who was first. What
lives in the actor that made it is not stolen, since it would be there twice.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

AHEAD = 2  # calls an actor may have outstanding: the next one waits where it will run
PATIENCE = 2.0  # times the longest piece so far, after which an actor counts as a straggler
LEAST_PATIENCE_S = 10.0  # and this long at least: a thief may have to load first what a straggler has loaded


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
