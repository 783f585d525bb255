"""The command line with points at which work stops, for the tests of lost nodes; run as a script.

Classes and functions of a script travel to the workers by value, so that what is here runs there. The folder that
WATCHED names holds

    order-POINT       the node that is going to be lost; empty while nobody knows which
    visits-POINT@NODE one byte for each time that work reached a point
    caught-POINT      work has stopped on the node to be lost, and waits there until it dies
    lost-NODE         no work passes a point on this node any more: its processes may outlive it for a moment

While an order stands, work on other nodes waits until somebody was caught. So a node is lost in the middle of its work,
however fast or slow the machine is. PART_FILES sets how many files a generator's corpus has.
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray

from rayprivacy.blocks import steps_plan
from rayprivacy.cli import main
from rayprivacy.corpus import shards
from rayprivacy.corpus.settings import MEMORY
from rayprivacy.dpsgd import train
from rayprivacy.generation import writing
from rayprivacy.runs import drive
from rayprivacy.teachers import encoding_job, pool

POLL = 0.05


class Points:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._passed: dict[str, int] = {}

    def reach(self, point: str, after: int = 0) -> None:
        """Stop here if this node is to be lost, at the visit number `after` of a process; else wait for the others."""
        node = self._visit(point)
        caught = self._folder / f"caught-{point}"
        self._passed[point] = self._passed.get(point, 0) + 1
        while (doomed := self._order(point)) is not None:
            if doomed == node and self._passed[point] > after:
                caught.touch()
            elif doomed == node or caught.exists():
                break
            time.sleep(POLL)
        while (self._folder / f"lost-{node}").exists():
            time.sleep(POLL)

    def hold(self, point: str) -> None:
        """Stop here, where no Ray is left to ask for a node, until the order is taken back."""
        self._note(point, "driver")
        while self._order(point) is not None:
            time.sleep(POLL)

    def share(self, point: str, target: str) -> None:
        """Wait until some work was done on the node that the order of a later point names."""
        self._visit(point)
        while (doomed := self._order(target)) is not None:
            if (self._folder / f"visits-{point}@{doomed}").exists():
                break
            time.sleep(POLL)

    def _order(self, point: str) -> str | None:
        with suppress(FileNotFoundError):
            return (self._folder / f"order-{point}").read_text()
        return None

    def _visit(self, point: str) -> str:
        node = str(ray.get_runtime_context().get_node_id())
        self._note(point, node)
        return node

    def _note(self, point: str, place: str) -> None:
        with (self._folder / f"visits-{point}@{place}").open("a") as file:
            file.write(".")


def _shared(real: Callable[..., Any], points: Points) -> Callable[..., Any]:
    def read(*args: Any, **kwargs: Any) -> Any:
        points.share("reading", "sharding")
        return real(*args, **kwargs)

    return read


def _stopped(real: Callable[..., Any], points: Points, point: str, after: int = 0) -> Callable[..., Any]:
    def write(*args: Any, **kwargs: Any) -> Any:
        replace = Path.replace

        def stopping(path: Path, target: Path) -> Path:
            points.reach(point, after)  # the file is written, and has not got its name yet
            return replace(path, target)

        Path.replace = stopping  # type: ignore[method-assign]
        try:
            return real(*args, **kwargs)
        finally:
            Path.replace = replace  # type: ignore[method-assign]

    return write


def _held(real: Callable[..., Any], points: Points) -> Callable[..., Any]:
    def measure(*args: Any) -> Any:
        points.hold("measuring")
        return real(*args)

    return measure


def _watched_encoder(points: Points) -> type:
    class Watched(encoding_job._Encoder):
        """An encoder that finishes a file of features before it is caught at the next."""

        def __call__(self, *args: Any) -> Any:
            return _stopped(super().__call__, points, "encoding", after=1)(*args)

    return Watched


def _watched_group(points: Points) -> type:
    class Watched(pool._SealedGroup):
        """A teacher group that finishes a piece, or answers for one, before it is caught at the next."""

        def train(self, piece: range) -> None:
            points.reach("training", after=1)
            super().train(piece)

        def vote(self, *args: Any) -> None:
            points.reach("voting", after=1)
            super().vote(*args)

    return Watched


def _watched_sampler(points: Points) -> type:
    class Watched(writing.Sampler):
        def __call__(self, *args: Any) -> Any:
            points.reach("writing")
            return super().__call__(*args)

    return Watched


def _watched_worker(real: Callable[..., Any], points: Points) -> Callable[[Any], None]:
    def train_worker(given: Any) -> None:
        from rayprivacy.dpsgd import worker

        train = worker._Worker.train

        def watched(self: Any) -> None:
            engine, step = self._training.engine, self._training.engine.step

            def stopping(number: int, batches: Any) -> None:
                if number == 3:  # the second step of the second chunk
                    points.reach("steps")
                step(number, batches)

            engine.step = stopping
            train(self)

        worker._Worker.train = watched  # type: ignore[method-assign]
        real(given)

    return train_worker


def _watch(points: Points) -> None:
    shards._OF_MEMORY = MEMORY // 5000  # so that a small corpus is shuffled, too
    shards._read = _shared(shards._read, points)
    shards._write = _stopped(shards._write, points, "sharding")
    encoding_job._Encoder = _watched_encoder(points)  # type: ignore[misc]
    drive._measure = _held(drive._measure, points)
    pool._SealedGroup = _watched_group(points)  # type: ignore[misc]
    train.train_worker = _watched_worker(train.train_worker, points)
    writing.Sampler = _watched_sampler(points)  # type: ignore[misc]
    steps_plan.PART_FILES = int(os.environ.get("PART_FILES", steps_plan.PART_FILES))


if __name__ == "__main__":
    _watch(Points(Path(os.environ["WATCHED"])))
    sys.exit(main())
