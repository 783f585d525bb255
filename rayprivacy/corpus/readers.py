"""Parquet, JSONL and CSV files as Arrow tables, read in pieces.

The readers of text formats take ids as they are written. Type inference works piece by piece, and would name one user
007 in one piece and 7 in another, or read an id as a date: one person in two shards.
"""

import io
import itertools
import json
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv

from rayprivacy.core.errors import CorpusError

_PIECE_BYTES = 16 << 20
_BUFFER_BYTES = 1 << 20
_PIECE_LINES = 50_000


def read_pieces(
    stream: pa.NativeFile, kind: str, columns: list[str], stripe: tuple[int, int] = (0, 1)
) -> Iterator[pa.Table]:
    """Read the given columns of an open file: CSV and JSONL as strings, Parquet with the types it has.

    The stripe (i, n) reads row groups i, i + n, i + 2n, ... of a Parquet file; of a JSONL file the lines that begin in
    the i-th of n stretches of bytes. A CSV file is read as a whole, since its texts may hold line ends.
    """
    match kind:
        case "parquet":
            return _read_parquet(stream, columns, stripe)
        case "csv":
            return _read_csv(stream, columns)
    return _read_jsonl(stream, columns, stripe)


def row_numbers(stream: pa.NativeFile, kind: str, stripe: tuple[int, int] = (0, 1)) -> Iterator[int]:
    """The number in its file, from 0, of each row that `read_pieces` reads; a JSONL file must be read as a whole."""
    if kind != "parquet":
        return itertools.count()
    file = pq.read_metadata(stream)
    ends = list(itertools.accumulate((file.row_group(at).num_rows for at in range(file.num_row_groups)), initial=0))
    groups = range(stripe[0], file.num_row_groups, stripe[1])
    return itertools.chain.from_iterable(range(ends[at], ends[at + 1]) for at in groups)


def _read_parquet(stream: pa.NativeFile, columns: list[str], stripe: tuple[int, int]) -> Iterator[pa.Table]:
    # Pages are read as they are needed: how large a row group is must not decide how much memory it takes.
    file = pq.ParquetFile(stream, pre_buffer=False, buffer_size=_BUFFER_BYTES)
    groups = list(range(stripe[0], file.num_row_groups, stripe[1]))
    for batch in file.iter_batches(_PIECE_LINES, row_groups=groups, columns=columns):
        yield pa.Table.from_batches([batch])


def _read_csv(stream: pa.NativeFile, columns: list[str]) -> Iterator[pa.Table]:
    if _is_blank(stream):
        return  # Arrow refuses a file without a header; other files of the source may have one
    reader = arrow_csv.open_csv(
        stream,
        read_options=arrow_csv.ReadOptions(block_size=_PIECE_BYTES),
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(
            include_columns=columns, column_types=dict.fromkeys(columns, pa.large_string())
        ),
    )
    for batch in reader:
        yield pa.Table.from_batches([batch])


def _is_blank(stream: pa.NativeFile) -> bool:
    """Whether a file is shorter than the buffer and has nothing but white space."""
    start = stream.read(_BUFFER_BYTES)
    stream.seek(0)
    return len(start) < _BUFFER_BYTES and not start.removeprefix(BOM_UTF8).strip()


def _read_jsonl(stream: pa.NativeFile, columns: list[str], stripe: tuple[int, int]) -> Iterator[pa.Table]:
    lines = (line for line in _lines(stream, stripe) if line.strip())
    while piece := list(itertools.islice(lines, _PIECE_LINES)):
        records = [_record(line) for line in piece]
        yield pa.table(
            {name: pa.array([_string(record.get(name)) for record in records], pa.large_string()) for name in columns}
        )


def _lines(stream: pa.NativeFile, stripe: tuple[int, int]) -> Iterator[str]:
    """The lines that begin in a stretch of the file. Only a line feed ends a line, and U+2028, say, does not."""
    number, count = stripe
    size = stream.size() if count > 1 else 0
    start, end = size * number // count, size * (number + 1) // count
    reader = io.BufferedReader(stream)
    if start:
        reader.seek(start - 1)
        reader.readline()  # of the stretch before, unless it ends just there
    elif reader.peek(len(BOM_UTF8)).startswith(BOM_UTF8):
        reader.read(len(BOM_UTF8))
    while (count == 1 or reader.tell() < end) and (line := reader.readline()):
        yield line.decode()


def _record(line: str) -> dict[str, Any]:
    record = json.loads(line)
    if not isinstance(record, dict):
        raise CorpusError("a line of corpus.source is not a JSON object: write one object a line.")
    return record


def _string(value: Any) -> str | None:
    match value:
        case None:
            return None
        case str():
            # A lone surrogate is valid JSON and no valid text: it becomes a question mark.
            return value.encode("utf-8", "replace").decode()
        case bool():
            return "true" if value else "false"  # as Arrow writes it
        case float() if value.is_integer() and abs(value) < 2**53:
            return str(int(value))
        case int() | float():
            return str(value) if value == value else None
    raise CorpusError("a column of corpus.source holds JSON lists or objects: give strings or numbers.")
