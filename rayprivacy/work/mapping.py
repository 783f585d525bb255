"""Work that is mapped over rows, files or numbers: Ray Data alone hands it out.

A function that is mapped must be sealed, draw no noise, charge nothing, and write the same bytes when it runs again:
Ray repeats what was lost with a process or a node.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import pyarrow as pa
import ray.data
from ray.exceptions import RayError

from rayprivacy.core.private import Seal

J = TypeVar("J")
T = TypeVar("T")


def numbers(chosen: Iterable[int]) -> "ray.data.Dataset":
    """Some numbers, one block and so one task each; Ray must be started."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    return ray.data.from_arrow([pa.table({"number": [number]}) for number in chosen])


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
        return pa.table({"number": [number], "result": [pickle.dumps(work(job, number))]})

    done = numbers(blocks).map_batches(mapped, batch_format="pyarrow")
    for row in rows_of(done, step, seal):
        yield row["number"], pickle.loads(row["result"])  # noqa: S301 - of a task of our own


def rows_of(mapped: "ray.data.Dataset", step: str, seal: Seal) -> Iterator[dict[str, Any]]:
    """What a dataset comes to, row by row as it is finished; a failure is told in one sentence of ours."""
    rows = iter(mapped.iter_rows())
    while True:
        try:
            row = next(rows, None)
        except RayError as error:
            failure = seal.unwrap(step, error)
        else:
            if row is None:
                return
            yield row
            continue
        raise failure  # outside the except block, so that Ray's text does not come along
