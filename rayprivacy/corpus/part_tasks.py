"""Ray tasks on the part files of a sharded corpus: one for each part, told by its public number.

What a task is told besides is the same for all of them, and holds no row. What it makes of its part it writes where its
caller will find it, or hands over, as private as the part is.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError

from rayprivacy.core.sealing import Seal

_RETRIES = 3  # of a task whose process or node was lost
J = TypeVar("J")
T = TypeVar("T")


def on_parts(
    work: Callable[[J, int], T], job: J, parts: Iterable[int], step: str, seal: Seal
) -> Iterator[tuple[int, T]]:
    """Work on every part; yields each once with what came of it, as it is finished. Ray must be started.

    The work must be sealed, and may run again after a process was lost.
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
