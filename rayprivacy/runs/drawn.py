"""A random sample of the rows of Parquet files, by a public seed; reads one batch at a time."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rayprivacy.evaluation.texts import Indexes, sample

BATCH_ROWS = 8192  # in memory at a time
_SEED = 0


def drawn_rows(files: Sequence[Path], most: int, columns: list[str]) -> pa.Table:
    """Some rows of all files together, in their order: all where there are no more than `most`."""
    sizes = [pq.read_metadata(path).num_rows for path in files]
    places, first = sample(sum(sizes), most, _SEED), 0
    found = [pq.read_schema(files[0]).remove_metadata().empty_table().select(columns)]
    for path, size in zip(files, sizes, strict=True):
        found += rows_at(path, _within(places, first, size), columns)
        first += size
    return pa.concat_tables(found)


def rows_at(path: Path, places: Indexes, columns: list[str]) -> Iterator[pa.Table]:
    """The rows at these places of a file, ascending, in one table for each batch of it."""
    if not len(places):
        return
    first = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=columns):
            rows = pa.Table.from_batches([batch]).select(columns)
            yield rows.take(pa.array(_within(places, first, len(rows))))
            first += len(rows)


def _within(places: Indexes, first: int, size: int) -> Indexes:
    """The places that lie in a stretch, counted from its start."""
    return np.asarray(places[(places >= first) & (places < first + size)] - first)
