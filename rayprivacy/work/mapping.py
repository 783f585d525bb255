"""Work that is mapped over rows, files or numbers: Ray Data alone hands it out.

A function that is mapped must be sealed, draw no noise, charge nothing, and give the same when it runs again: what was
lost with a process or a node is repeated. Ray repeats a task, a few times; of a pool of actors, what is unfinished is
begun anew in new actors, a few times without any progress. Such limits are public and never look at data.
"""

import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import pyarrow as pa
import ray.data
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError, UserCodeException
from ray.util.annotations import RayDeprecationWarning

from rayprivacy.core.errors import ClusterError, RayPrivacyError
from rayprivacy.core.private import Seal

J = TypeVar("J")
X = TypeVar("X")
T = TypeVar("T")
LOSSES = 4  # of processes, after which the cluster is not worth waiting for
ROOM_S = 600  # how long a pool waits for its first actor, which may need a machine that is started for it


def numbers(chosen: Iterable[int]) -> "ray.data.Dataset":
    """Some numbers, one block and so one task each; Ray must be started."""
    return _dataset(pa.table({"number": [number]}) for number in chosen)


def _dataset(blocks: Iterable[pa.Table]) -> "ray.data.Dataset":
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_no_progress_timeout_s = -1  # one piece of work may take hours
    context.wait_for_min_actors_s = ROOM_S
    context.autoscaling_config.actor_pool_util_upscaling_threshold = 1.0  # one more while every actor has work
    dataset: ray.data.Dataset = ray.data.from_blocks([*blocks])
    return dataset


def on_numbers(
    work: Callable[[J, int], T], job: J, chosen: Iterable[int], step: str, seal: Seal
) -> Iterator[tuple[int, T]]:
    """Work on every number, of a part say; yields each once with what came of it, as it is finished.

    The job is the same for all, and holds no row. What comes of a number is as private as what it stands for.
    """
    blocks = [*chosen]
    if not blocks:
        return

    def mapped(block: pa.Table) -> pa.Table:
        (number,) = block["number"].to_pylist()
        return _result(number, work(job, number))

    for row in rows_of(_mapped(numbers(blocks), mapped, max_retries=LOSSES), step, seal):
        yield _read(row)


@dataclass(frozen=True)
class Actors:
    """How many processes share some work at most, and what each reserves."""

    most: int
    cpus: float = 1.0
    gpus: float = 0.0


def in_actors(
    kind: Callable[[J], Callable[[int, X], T]],
    job: J,
    items: Iterable[tuple[int, X]],
    step: str,
    seal: Seal,
    actors: Actors,
) -> Iterator[tuple[int, T]]:
    """Work on numbered items with what is slow to load; yields each number once with its result, as it is finished.

    An actor makes `kind(job)`, which loads a model say, with its first item, and calls it with every item it is given,
    one at a time. The pool begins with one actor and grows while there is work and room.
    """
    left, losses = {number: pickle.dumps(item) for number, item in items}, 0
    while left:
        try:
            for number, result in map(_read, _pool(kind, job, left, actors).iter_rows()):
                del left[number]
                losses = 0
                yield number, result
        except RayError as error:
            losses += 1
            failure = None if is_loss(error) and losses <= LOSSES else told(step, error, seal)
            if failure is None:
                continue
        else:
            return
        raise failure  # outside the except block, so that Ray's text does not come along


def _pool(kind: Any, job: Any, left: dict[int, bytes], actors: Actors) -> "ray.data.Dataset":
    blocks = (pa.table({"number": [number], "item": [item]}) for number, item in left.items())
    most = min(actors.most, len(left))
    return _mapped(
        _dataset(blocks),
        _Actor,
        fn_constructor_args=(kind, job),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=most, max_tasks_in_flight_per_actor=1),
        num_cpus=actors.cpus,
        num_gpus=actors.gpus or None,
        max_restarts=0,  # Ray restarts no actor whose arguments were lost with a node, and theirs are objects
        max_task_retries=0,
    )


def _mapped(dataset: "ray.data.Dataset", work: Any, **options: Any) -> "ray.data.Dataset":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RayDeprecationWarning)  # there is no other way yet to bound what Ray repeats
        return dataset.map_batches(work, batch_format="pyarrow", **options)


class _Actor:
    """What runs in each process of a pool; it loads late, so that a failure there is one of the work."""

    def __init__(self, kind: Callable[[J], Callable[[int, X], T]], job: J) -> None:
        self._kind, self._job = kind, job

    @cached_property
    def _work(self) -> Any:
        return self._kind(self._job)

    def __call__(self, block: pa.Table) -> pa.Table:
        (row,) = block.to_pylist()
        item = pickle.loads(row["item"])  # noqa: S301 - of a driver of our own
        return _result(row["number"], self._work(row["number"], item))


def _result(number: int, result: Any) -> pa.Table:
    return pa.table({"number": [number], "result": [pickle.dumps(result)]})


def _read(row: dict[str, Any]) -> tuple[int, Any]:
    return row["number"], pickle.loads(row["result"])  # noqa: S301 - of a task of our own


def rows_of(mapped: "ray.data.Dataset", step: str, seal: Seal) -> Iterator[dict[str, Any]]:
    """What a dataset comes to, row by row as it is finished; a failure is told in one sentence of ours."""
    rows = iter(mapped.iter_rows())
    while True:
        try:
            row = next(rows, None)
        except RayError as error:
            failure = told(step, error, seal)
        else:
            if row is None:
                return
            yield row
            continue
        raise failure  # outside the except block, so that Ray's text does not come along


def told(step: str, error: RayError, seal: Seal) -> RayPrivacyError:
    """What Ray raised, in one sentence of ours."""
    if isinstance(error, GetTimeoutError):
        return ClusterError(
            f"{step} found no room in the cluster within {ROOM_S} seconds: ask for less of a machine, add machines, or"
            f" stop what holds these; {seal.remedy}."
        )
    return gave_up(step, seal) if is_loss(error) else seal.unwrap(step, error)


def gave_up(step: str, seal: Seal) -> RayPrivacyError:
    """What is said of processes that are lost again and again."""
    return seal.kind(f"{step} lost processes again and again: check the memory of the machines; {seal.remedy}.")


def is_loss(error: BaseException) -> bool:
    """Whether Ray lost a process or an object, rather than our code having raised something."""
    if isinstance(error, RayActorError) and error.actor_init_failed:
        return False
    while isinstance(error, RayTaskError):
        error = error.cause
    return isinstance(error, RayError) and not isinstance(error, UserCodeException | GetTimeoutError)
