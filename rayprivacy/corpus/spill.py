"""Prepared rows on their way to their part: files in a private scratch folder, which Ray never sees.

Ray counts the rows of its blocks, and shows the counts on its metrics port and dashboard; how many records there are is
private. So rows travel through files beside the shards, one for each block of the source. In a file rows lie by shard
and user, in stretches of one part, each with its first and last place, beside *marks*: the place of a row every
`MARK_BYTES`, by which `shards.cut` cuts parts into pieces of about one size.

Files have mode 0600 in a directory of mode 0700. A task that runs twice writes the same bytes under the same names.
"""

import json
import shutil
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rayprivacy.core.files import Json, private_directory, write_atomic

MARK_BYTES = 256 << 10  # of rows between two marks
ROW_BYTES = 100  # what a row needs beside its text, about
_STRETCH_ROWS = 16_384
_INDEX = b"index"
Place = tuple[int, str]  # a shard and a user


@dataclass(frozen=True)
class Range:
    """The rows of a part from `start` on (None from its beginning), up to `end`, exclusive (None to its end)."""

    part: int
    start: Place | None = None
    end: Place | None = None


@dataclass(frozen=True)
class Spill:
    """The scratch folder of one sharding."""

    root: Path

    def prepare(self) -> None:
        """Make the folder."""
        private_directory(self.root)

    def remove(self) -> None:
        """Delete the folder and the private rows in it."""
        shutil.rmtree(self.root, ignore_errors=True)

    def write(self, piece: int, block: int, rows: pa.Table) -> None:
        """Keep the prepared rows of one block, sorted by shard and user."""
        rows = rows.combine_chunks()
        parts, shards = rows["part"].to_numpy(), rows["shard"].to_numpy()
        starts = _stretches(parts)
        ends = [*starts[1:], len(rows)]
        users = rows["user"]
        index = {
            "parts": parts[starts].tolist(),
            "first": [(int(shards[at]), users[at].as_py()) for at in starts],
            "last": [(int(shards[at - 1]), users[at - 1].as_py()) for at in ends],
            "marks": [(int(parts[at]), int(shards[at]), users[at].as_py()) for at in _marks(rows, piece + block)],
        }
        sink = pa.BufferOutputStream()
        schema = rows.schema.with_metadata({_INDEX: json.dumps(index)})
        with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            for start, end in zip(starts, ends, strict=True):
                writer.write_table(rows.slice(start, end - start))
        write_atomic(self.file(piece, block), sink.getvalue())

    def file(self, piece: int, block: int) -> Path:
        """The file of one block of a piece of the source."""
        return self.root / f"rows-{piece:07d}-{block:05d}.arrow"

    def marks(self, files: Iterable[Path]) -> Iterator[tuple[int, int, str]]:
        """Part, shard and user of all marks, in no order."""
        for file in files:
            with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as reader:
                yield from map(tuple, _index(reader)["marks"])

    def read(self, files: Iterable[Path], wanted: Range) -> Iterator[pa.Table]:
        """The rows of a range, a table for each stretch that has some."""
        for file in files:
            with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as reader:
                index = _index(reader)
                for batch, part in enumerate(index["parts"]):
                    first, last = tuple(index["first"][batch]), tuple(index["last"][batch])
                    if part != wanted.part or _outside(wanted, first, last):
                        continue
                    rows = pa.Table.from_batches([reader.get_batch(batch)]).replace_schema_metadata(None)
                    yield rows if _inside(wanted, first, last) else _within(rows, wanted)


def _index(reader: pa.ipc.RecordBatchFileReader) -> Json:
    return dict(json.loads(reader.schema.metadata[_INDEX]))


def _stretches(parts: npt.NDArray[np.int32]) -> list[int]:
    """Where stretches begin: with every part, and every `_STRETCH_ROWS` rows of one."""
    starts = np.flatnonzero(np.diff(parts, prepend=parts[:1] - 1)).tolist()
    ends = [*starts[1:], len(parts)]
    return [at for each in zip(starts, ends, strict=True) for at in range(*each, _STRETCH_ROWS)]


def _marks(rows: pa.Table, turn: int) -> npt.NDArray[np.int64]:
    """Rows at equal distances in bytes; where the first one lies changes from file to file."""
    if not len(rows):
        return np.zeros(0, np.int64)
    ends = np.cumsum(pc.binary_length(rows["text"]).to_numpy() + ROW_BYTES)
    first = turn * 0.618 % 1 * MARK_BYTES
    return np.searchsorted(ends, np.arange(first, ends[-1], MARK_BYTES), side="right")


def _outside(wanted: Range, first: Place, last: Place) -> bool:
    before = wanted.start is not None and last < wanted.start
    return before or (wanted.end is not None and first >= wanted.end)


def _inside(wanted: Range, first: Place, last: Place) -> bool:
    after = wanted.start is None or first >= wanted.start
    return after and (wanted.end is None or last < wanted.end)


def _within(rows: pa.Table, wanted: Range) -> pa.Table:
    """Rows are sorted: what is wanted lies between two of them."""
    keys = list(zip(rows["shard"].to_pylist(), rows["user"].to_pylist(), strict=True))
    start = 0 if wanted.start is None else bisect_left(keys, wanted.start)
    end = len(keys) if wanted.end is None else bisect_left(keys, wanted.end)
    return rows.slice(start, max(0, end - start))
