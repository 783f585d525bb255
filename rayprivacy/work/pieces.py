"""Private pieces of work, done by a public number of Ray tasks: how many pieces there are, Ray never learns.

How a corpus is cut follows its size, so that no piece needs more memory than another one; but its size is private, and
Ray shows everybody how many tasks there were, and what they were given. So Ray runs as many tasks as the cluster has
CPUs, each of which is given its own number and a folder. In the folder a task finds how many pieces there are, claims
one after the other, those that slower tasks have not reached included, and leaves a report of each.

A piece is claimed by making a file that nobody else can make as well, and it is done when its report is there. What a
lost process had claimed is offered again; what is done stays done. A piece may run twice at the same time, when a
process that was believed lost is alive: pieces are deterministic, and write files in one go.

Reports hold private counts: files of mode 0600 in a folder of mode 0700.

The part files of a sharded corpus are a public number, so `on_parts` simply runs one task for each.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError, UserCodeException

from rayprivacy.core.errors import RayPrivacyError
from rayprivacy.core.files import OWNER_ONLY, private_directory, read_json, write_json
from rayprivacy.core.private import Seal

ATTEMPTS = 3  # rounds in which processes were lost and nothing was finished
_RETRIES = 3  # of a task whose process or node was lost
_LEAST_TASKS = 16  # so that nodes which join later find tasks in the queue; public, whatever the cluster
_STOPPED = "stopped"
J = TypeVar("J")
T = TypeVar("T")
Facts = Mapping[str, Any]
Piece = Callable[[int], Facts]


def on_parts(
    work: Callable[[J, int], T], job: J, parts: Iterable[int], step: str, seal: Seal
) -> Iterator[tuple[int, T]]:
    """Work on every part; yields each once with what came of it, as it is finished. Ray must be started.

    The work must be sealed, and may run again after a process was lost. The job is the same for all parts, and holds no
    row. What the work makes of a part it writes where its caller will find it, or returns, as private as the part is.
    """
    task = ray.remote(work).options(max_retries=_RETRIES, num_cpus=1, scheduling_strategy="SPREAD")
    shared = ray.put(job)
    running = {task.remote(shared, part): part for part in parts}
    while running:
        (done,), _ = ray.wait(list(running), num_returns=1)
        yield running.pop(done), _result(done, step, seal)


def _result(done: Any, step: str, seal: Seal) -> Any:
    try:
        return ray.get(done)
    except RayError as error:
        failure = seal.unwrap(step, error)
    raise failure  # outside the except block, so that Ray's text does not come along


@dataclass(frozen=True)
class Bench:
    """The private folder in which the pieces of one step lie."""

    folder: Path

    def remove(self) -> None:
        """Delete the folder, with all claims and reports."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def offer(self, pieces: int) -> None:
        """Say how many pieces there are, from 0 on, in a folder that may be there."""
        private_directory(self.folder)
        write_json(self.folder / "pieces.json", pieces)

    @property
    def pieces(self) -> int:
        """The private number of pieces."""
        return int(read_json(self.folder / "pieces.json"))

    def take(self, task: int, tasks: int) -> Iterator[int]:
        """Claim pieces until none is left: first a stretch of one's own, then what the others have not reached."""
        first, pieces = self.pieces * task // tasks, self.pieces
        known: set[str] = set()
        for piece in [*range(first, pieces), *range(first)]:
            if f"{piece}.claim" in known:
                continue
            if (self.folder / _STOPPED).exists():
                return
            if self._claim(piece):
                yield piece
            else:  # another task is ahead here: see at once how far it has come
                known = set(os.listdir(self.folder))

    def stop(self) -> None:
        """Let tasks end after the piece that they are at."""
        (self.folder / _STOPPED).touch(OWNER_ONLY)

    def report(self, piece: int, facts: Facts) -> None:
        """Say that a piece is done, and what came of it."""
        write_json(self._report(piece), facts)

    def reports(self) -> list[Facts]:
        """What came of all pieces, in their order."""
        return [read_json(self._report(piece)) for piece in range(self.pieces)]

    def reopen(self) -> list[int]:
        """The pieces that are not done; a process that has claimed one is taken for lost."""
        names = set(os.listdir(self.folder))
        left = [piece for piece in range(self.pieces) if self._report(piece).name not in names]
        for piece in left:
            (self.folder / f"{piece}.claim").unlink(missing_ok=True)
        return left

    def _claim(self, piece: int) -> bool:
        try:
            os.close(os.open(self.folder / f"{piece}.claim", os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY))
        except FileExistsError:
            return False
        return True

    def _report(self, piece: int) -> Path:
        return self.folder / f"{piece}.json"


def work_off(bench: Bench, piece: Piece, step: str, seal: Seal) -> None:
    """Do every piece that is not done. Ray must be started; it pickles `piece`, and what that holds must be public."""
    lost, left = 0, len(bench.reopen())
    while left:
        failure = _round(bench, piece, step, seal)
        if failure is not None:
            raise failure
        before, left = left, len(bench.reopen())
        lost = lost + 1 if left == before else 0
        if lost == ATTEMPTS:
            raise seal.kind(
                f"{step} lost processes {ATTEMPTS} times: check the machines and their memory, and run again with"
                " --resume."
            )


def _round(bench: Bench, piece: Piece, step: str, seal: Seal) -> RayPrivacyError | None:
    """Start every task once, and wait for all of them; the first failure of our own code stops the others."""
    tasks = max(_LEAST_TASKS, int(ray.cluster_resources().get("CPU", 1)))
    # A task that is lost is not Ray's to repeat: what it has not done is offered to all in the next round.
    start = ray.remote(_task).options(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")
    waiting = [start.remote(bench, seal.around(step)(piece), task, tasks) for task in range(tasks)]
    failure: RayPrivacyError | None = None
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1)
        found = _failure(done[0], step, seal)
        if found is not None and failure is None:
            failure = found
            bench.stop()
    return failure


def _failure(task: Any, step: str, seal: Seal) -> RayPrivacyError | None:
    """What our own code raised in a task that has ended."""
    try:
        ray.get(task)
    except Exception as error:  # noqa: BLE001 - whatever Ray raises may quote private rows
        return None if is_loss(error) else seal.unwrap(step, error)
    return None


def _task(bench: Bench, piece: Piece, task: int, tasks: int) -> None:
    for number in bench.take(task, tasks):
        bench.report(number, piece(number))


def is_loss(error: BaseException) -> bool:
    """Whether Ray lost, or could not get, a process or an object, rather than our code having raised something."""
    while isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    return isinstance(error, RayError) and not isinstance(error, RayTaskError | UserCodeException)
