"""Columns of a table as input of the keyed function, row by row, without a Python object for each value.

`Key.integer(label, *parts)` reads every part behind its length. Here Arrow writes lengths and values of all rows one
behind the other, so that the input of a row, or of neighbouring rows, is a stretch of one buffer (see `Key.digests`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, repr=False, eq=False)
class Framed:
    """The framed values of all rows; row i lies from `ends[i]` to `ends[i + 1]`."""

    data: memoryview
    ends: npt.NDArray[np.int64]

    def rows(self) -> Iterator[memoryview]:
        """The inputs, one for each row."""
        return self.runs(np.arange(len(self.ends) - 1))

    def runs(self, starts: npt.NDArray[np.int64]) -> Iterator[memoryview]:
        """The input of neighbouring rows together, from each of some rows up to the next of them, or to the end."""
        places = self.ends[[*starts, len(self.ends) - 1]].tolist()
        return (self.data[start:end] for start, end in pairwise(places))


def framed(columns: Sequence[pa.ChunkedArray]) -> Framed:
    """Frame some columns of strings, none of them with nulls (see `marked`)."""
    rows = len(columns[0])
    if not rows:
        return Framed(memoryview(b""), np.zeros(1, np.int64))
    values = [_flat(column).cast(pa.large_binary()) for column in columns]
    parts = [part for value in values for part in (_lengths(value), value)]
    joined = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))
    _, ends, data = joined.buffers()
    places = np.frombuffer(ends, np.int64)[joined.offset : joined.offset + rows + 1]
    return Framed(memoryview(data) if data is not None else memoryview(b""), places)


def marked(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column whose nulls differ from its empty values: `=` stands before each value, and nothing for a null."""
    strings = column.cast(pa.large_string())
    mark, nothing = (pa.scalar(text, pa.large_string()) for text in ("=", ""))
    return pc.fill_null(pc.binary_join_element_wise(mark, strings, nothing), "")


def _lengths(values: pa.Array) -> pa.Array:
    """The number of bytes of each value, in 8 bytes, the highest first."""
    lengths = pc.binary_length(values).to_numpy().astype(">u8")
    return pa.Array.from_buffers(pa.binary(8), len(values), [None, pa.py_buffer(lengths)]).cast(pa.large_binary())


def _flat(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)
