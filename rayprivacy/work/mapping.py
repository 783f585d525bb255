"""Work that is mapped over rows, files or numbers: Ray Data alone hands it out.

A function that is mapped must be sealed, draw no noise, charge nothing, and give the same when it runs again: what was
lost with a process or a node is repeated. Ray repeats a task, a few times; of a pool of actors, what is unfinished is
begun anew in new actors, a few times without any progress. Such limits are public and never look at data.
"""

import gc
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

import pyarrow as pa
import ray.data
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError, UserCodeException
from ray.util.annotations import RayDeprecationWarning

from rayprivacy.core.errors import ClusterError, RayPrivacyError, is_starved
from rayprivacy.core.private import Seal

J = TypeVar("J")
X = TypeVar("X")
T = TypeVar("T")
LOSSES = 4  # of processes, after which the cluster is not worth waiting for
ROOM_S = 600  # how long a pool waits for its first actor, which may need a machine that is started for it
SHUFFLED_BYTES = 128 << 20  # of rows that one task spreads at a time; several times as much memory, at its peak
FETCH_S = 120  # how long a shuffle waits for rows that a node held: what is lost may not be made while it waits


def numbers(chosen: Iterable[int]) -> "ray.data.Dataset":
    """Some numbers, one block and so one task each; Ray must be started."""
    return _dataset(pa.table({"number": [number]}) for number in chosen)


def _dataset(blocks: Iterable[pa.Table]) -> "ray.data.Dataset":
    dataset: ray.data.Dataset = ray.data.from_blocks([*blocks])
    context = dataset.context  # its own: a program that calls us keeps the settings that it has
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_no_progress_timeout_s = -1  # one piece of work may take hours
    context.max_errored_blocks = 0  # whoever maps with Ray Data beside us may allow some, and nothing may be left out
    context.wait_for_min_actors_s = ROOM_S
    context.hash_shuffle_reduce_get_timeout_s = FETCH_S
    context.shuffle_input_batch_bytes = SHUFFLED_BYTES
    context.autoscaling_config.actor_pool_util_upscaling_threshold = 1.0  # one more while every actor has work
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

    try:
        yield from each_once(map(_read, in_tasks(numbers(blocks), mapped).iter_rows()), blocks, step, seal)
    except RayError as error:
        failure = told(step, error, seal)
    else:
        return
    raise failure  # outside the except block, so that Ray's text does not come along


def each_once(found: Iterable[tuple[int, T]], chosen: Iterable[int], step: str, seal: Seal) -> Iterator[tuple[int, T]]:
    """Pass on what came of each number, and fail where one comes twice or not at all.

    Sums that are released add up parts: with one of them twice, a user would move the sum by twice what was charged.
    """
    left = {*chosen}
    for number, result in found:
        if number not in left:
            raise seal.kind(f"{step} came to number {number} twice, or unasked: {seal.remedy}.")
        left.remove(number)
        yield number, result
    if left:
        raise seal.kind(f"{step} came to nothing for {len(left)} of its numbers: {seal.remedy}.")


def in_tasks(dataset: "ray.data.Dataset", work: Callable[[pa.Table], Any]) -> "ray.data.Dataset":
    """Map work over blocks; a task whose process is lost is repeated, a few times."""
    return _mapped(dataset, work, max_retries=LOSSES)


def in_reads(reader: Callable[..., "ray.data.Dataset"], *place: str, **options: Any) -> "ray.data.Dataset":
    """What a reader of Ray Data reads in tasks, which are repeated a few times, too."""
    with _unwarned():
        return reader(*place, ray_remote_args={"max_retries": LOSSES}, **options)


def rows_of(mapped: "ray.data.Dataset", step: str, seal: Seal) -> list[dict[str, Any]]:
    """All rows that a dataset comes to; what a shuffle lost with a node is begun anew, a few times."""
    for _ in range(LOSSES):
        try:
            return [*mapped.iter_rows()]
        except RayError as error:
            failure = told(step, error, seal)
            if not is_loss(error):
                break
    raise failure


def in_actors(
    kind: Callable[[J], Callable[[int, X], T]],
    job: J,
    items: Iterable[tuple[int, X]],
    step: str,
    seal: Seal,
    most: int,
    cpus: float = 1.0,
    gpus: float = 0.0,
) -> Iterator[tuple[int, T]]:
    """Work on numbered items with what is slow to load; yields each number once with its result, as it is finished.

    An actor makes `kind(job)`, which loads a model say, with its first item, and calls it with every item it is given,
    one at a time. The pool begins with one actor, and grows to at `most` so many while there is work and room.
    """
    left, losses, ever = {number: pickle.dumps(item) for number, item in items}, 0, False
    while left:
        blocks = (pa.table({"number": [number], "item": [item]}) for number, item in left.items())
        size = min(most, len(left))
        pool = _mapped(
            _dataset(blocks),
            _Actor,
            fn_constructor_args=(kind, job),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=size, max_tasks_in_flight_per_actor=1),
            num_cpus=cpus,
            num_gpus=gpus or None,
            max_restarts=0,  # Ray restarts no actor whose arguments were lost with a node, and theirs are objects
            max_task_retries=0,
        )
        failure = None
        try:
            for number, result in map(_read, pool.iter_rows()):
                del left[number]
                if losses:
                    gc.collect()  # once more: a thread of the lost pool may have held it until now
                losses = 0
                yield number, result
        except RayError as error:
            losses += 1
            failure = None if is_loss(error) and losses <= LOSSES else told(step, error, seal)
        if failure is not None:
            raise failure  # outside the except block, so that Ray's text does not come along
        if losses:
            ever = True
            del pool
            gc.collect()  # what is left of a lost pool has references in circles, and its actors would keep their room
    if ever:
        gc.collect()  # by now no thread holds one


def _mapped(dataset: "ray.data.Dataset", work: Any, **options: Any) -> "ray.data.Dataset":
    with _unwarned():
        return dataset.map_batches(work, batch_format="pyarrow", **options)


@contextmanager
def _unwarned() -> Iterator[None]:
    """Ray repeats tasks without end, and says that it will take away how this is bounded: there is no other way yet."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RayDeprecationWarning)
        yield


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


def told(step: str, error: RayError, seal: Seal) -> RayPrivacyError:
    """What Ray raised, in one sentence of ours."""
    if _no_room(error):
        return ClusterError(
            f"{step} found no room in the cluster within {ROOM_S} seconds: ask for less of a machine, add machines, or"
            f" stop what holds these; {seal.remedy}."
        )
    return gave_up(step, seal) if is_loss(error) and not is_starved(error) else seal.unwrap(step, error)


def gave_up(step: str, seal: Seal) -> RayPrivacyError:
    """What is said of processes that are lost again and again."""
    return seal.kind(f"{step} lost processes again and again: check the memory of the machines; {seal.remedy}.")


def is_loss(error: BaseException) -> bool:
    """Whether Ray lost a process or an object, rather than our code having raised something."""
    if isinstance(error, RayActorError) and error.actor_init_failed:
        return False
    if _no_room(error):
        return False
    while isinstance(error, RayTaskError):
        error = error.cause
    return isinstance(error, RayError) and not isinstance(error, UserCodeException)


def _no_room(error: BaseException) -> bool:
    """Whether we waited in vain for a first actor; inside a task it was for rows that a node had held."""
    return isinstance(error, GetTimeoutError) and not isinstance(error, RayTaskError)
