"""The private corpus as tables of user, text and labels: Parquet, JSONL or CSV files, in shares that many tasks read.

The readers are ours: Ray's CSV reader quotes the row it fails on and infers types piece by piece. Text formats are read
as strings, ids as they are written: type inference works piece by piece, and would name one user 007 in one piece and 7
in another, or read an id as a date: one person in two shards. Names and columns are checked first, so that a typo costs
nothing. How many shares there are follows the size of the source, and is as private as that. Tables are no files, and
are refused here (see `tables`).

Only the source as the recipe writes it is ever named in an error: a file in a directory may be named after a user. The
columns of a Parquet file are named, because they come from its schema; those of CSV and JSONL are not, because they are
the first line of the file, which is a private record where a header was forgotten.
"""

import csv
import io
import itertools
import json
import os
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from importlib.metadata import version
from importlib.util import find_spec
from itertools import count, islice
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv
from pyarrow import fs

from rayprivacy.core.errors import CorpusError
from rayprivacy.core.files import Json
from rayprivacy.core.private import Seal, digest_json
from rayprivacy.core.uris import is_uri, open_uri, shown
from rayprivacy.corpus.layout import JOINED
from rayprivacy.corpus.quotes import QuotesRead
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.corpus.tables import ICEBERG, Table, table_among, table_of
from rayprivacy.corpus.users import PLACE

SEAL = Seal(CorpusError, "check that every file of corpus.source is well-formed and readable")
sealed, unwrap = SEAL.around, SEAL.unwrap
FORMATS = ("parquet", "jsonl", "csv")
CHITCHAT = "chitchat"
CHITCHAT_COLUMNS = ["user", "text", "topic"]
SHARE_BYTES = 16 << 20  # of a file that several shares read, about
_PIECE_BYTES, _BUFFER_BYTES = 16 << 20, 1 << 20
_COMPRESSED = 4
_PIECE_LINES, _PIECE_ROWS = 50_000, 65_536
_PLACED_SHARES, _PLACED_STRIPES = 16, 8  # of a source whose rows are known by their place, and of one of its files
_FIRST_LINE = {
    "csv": "the first line of a CSV file is taken as its header",
    "jsonl": "the keys of the first line of a JSONL file are taken as its columns",
}


@dataclass(frozen=True)
class SourceFiles:
    """The files of one source, all of one format."""

    kind: str  # one of `FORMATS`
    paths: tuple[str, ...]  # sorted, inside the filesystem
    sizes: tuple[int, ...]  # bytes
    stamp: str  # digest of names, sizes and modification times: a changed source is a new corpus
    left_out: int = 0  # files of the folder that are hidden, a program's own, or of no known format


def filesystem_of(source: str) -> tuple[fs.FileSystem, str]:
    """The pyarrow filesystem of a path or URI, and the path inside it."""
    if not is_uri(source):
        return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(source))
    return open_uri("corpus.source", source, CorpusError)


@sealed("listing the corpus")
def locate(config: CorpusConfig) -> SourceFiles:
    """List the source's files."""
    if config.source.startswith(ICEBERG):
        _refuse(table_of(config.source))
    filesystem, path = filesystem_of(config.source)
    info = filesystem.get_file_info(path)
    if info.type == fs.FileType.NotFound:
        raise CorpusError(f"corpus.source is '{shown(config.source)}', which does not exist: correct the path.")
    every = [info] if info.type == fs.FileType.File else _inside(config.source, filesystem, path)
    found = [file for file in every if not _is_hidden(file.path[len(path) :])]
    kinds = {kind for file in found if (kind := _kind(file.base_name)) in FORMATS}
    if len(kinds) != 1:
        what = f"mixes {' and '.join(sorted(kinds))} files" if kinds else "has no known extension"
        raise CorpusError(f"corpus.source is '{shown(config.source)}', which {what}: give .parquet, .jsonl or .csv.")
    files = sorted((file for file in found if _kind(file.base_name) in kinds), key=lambda file: str(file.path))
    stamp = digest_json([[file.path[len(path) :], file.size, file.mtime_ns] for file in files])
    paths, sizes = tuple(file.path for file in files), tuple(int(file.size) for file in files)
    return SourceFiles(kinds.pop(), paths, sizes, stamp, len(every) - len(files))


def left_out(config: CorpusConfig) -> str:
    """A sentence on the files of a source's folder that are not read; empty where all are, or it is no folder."""
    count = 0 if config.source == CHITCHAT else locate(config).left_out
    what = "hidden, or begin with an underscore, or are of another kind"
    return f"{count} file{'s' * (count > 1)} of corpus.source left out: they are {what}." if count else ""


def check_columns(config: CorpusConfig, names: list[str], kind: str = "csv") -> None:
    """Refuse a source that lacks a column of the recipe; its format decides whether its columns may be named."""
    wanted = [("corpus.user", config.user)] if config.user is not None else []
    wanted += [("corpus.text", config.text)]
    wanted += [("corpus.labels", name) for name in config.labels]
    if config.join:
        wanted += [("corpus.join.by", config.join.by), ("corpus.join.order", config.join.order)]
        wanted += [("corpus.join.words", name) for name in config.join.words]
    for field, name in wanted:
        if name not in names:
            raise CorpusError(f"{field} is '{name}', which is not a column of the corpus: {choice(names, kind)}.")


def choice(names: list[str], kind: str) -> str:
    """What a user who named a column that is not there may choose of, without private text.

    >>> choice(["user", "text"], "parquet"), choice(["user", "text"], "csv")
    ('choose of user, text', 'the first line of a CSV file is taken as its header, and it has 2 columns')
    """
    if kind in _FIRST_LINE:
        return f"{_FIRST_LINE[kind]}, and it has {len(names)} columns"
    return f"choose of {', '.join(names)}"


@sealed("reading the columns of the corpus")
def columns_of(config: CorpusConfig, files: SourceFiles) -> list[str]:
    """The column names of the first file that has any."""
    filesystem, _ = filesystem_of(config.source)
    for path in files.paths:
        with filesystem.open_input_file(path) as stream:
            names = _header(stream, files.kind)
        if names:
            return names
    raise CorpusError(f"corpus.source is '{shown(config.source)}', which holds no record: give a corpus with text.")


def _header(stream: pa.NativeFile, kind: str) -> list[str]:
    if kind == "parquet":
        return list(pq.read_schema(stream).names)
    text = io.TextIOWrapper(stream, "utf-8-sig", newline="")
    if kind == "csv":
        return next(csv.reader(text), [])
    line = next((line for line in text if line.strip()), "{}")
    return list(json.loads(line))


def _inside(source: str, filesystem: fs.FileSystem, path: str) -> list[fs.FileInfo]:
    found = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    files = {file.path[len(path) :].strip("/"): file for file in found if file.type == fs.FileType.File}
    _refuse(table_among(source, [*files]))
    return [*files.values()]


def _refuse(table: Table | None) -> None:
    """A table's files do not say by themselves which rows it has."""
    if table:
        raise CorpusError(
            f"corpus.source is '{shown(table.source)}', which is {table.kind.words}, and files are read here: write"
            " its rows to .parquet, .jsonl or .csv files."
        )


def _is_hidden(path: str) -> bool:
    """As in Spark and Arrow, files and folders whose names start with a dot or an underscore are no data, but for
    folders of a partition, such as `_day=3`. The path is that inside of the source.
    """
    return any(name.startswith((".", "_")) and "=" not in name for name in path.split("/"))


def _kind(name: str) -> str:
    return os.path.splitext(name)[1].lstrip(".").lower()


def read_pieces(
    stream: pa.NativeFile, kind: str, columns: list[str], stripe: tuple[int, int] = (0, 1)
) -> Iterator[pa.Table]:
    """Read columns of an open file: CSV and JSONL as strings, Parquet with the types it has.

    The stripe (i, n) reads row groups i, i + n, ... of a Parquet file, and the lines that begin in the i-th of n
    stretches of a JSONL file. A CSV file is read as a whole, since its texts may hold line ends.
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
        pa.PythonFile(QuotesRead(stream), "r"),
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
            {
                name: pa.array([plain_string(record.get(name)) for record in records], pa.large_string())
                for name in columns
            }
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


def _record(line: str) -> Json:
    record = json.loads(line)
    if not isinstance(record, dict):
        raise CorpusError("a line of corpus.source is not a JSON object: write one object a line.")
    return record


def plain_string(value: Any) -> str | None:
    """A value of a row, as Python has it, as a string; a lone surrogate, which no text has, is a question mark."""
    match value:
        case None:
            return None
        case str():
            return value.encode("utf-8", "replace").decode()
        case bool():
            return "true" if value else "false"  # as Arrow writes it
        case float() if value.is_integer() and abs(value) < 2**53:
            return str(int(value))
        case int() | float():
            return str(value) if value == value else None
        case UUID() | Decimal() | date():
            return str(value)
    raise CorpusError("a column of corpus.source holds lists or objects: give strings or numbers.")


def check_source(config: CorpusConfig) -> str:
    """Require the source and its columns; returns its stamp, which another state of the source does not have."""
    if config.source == CHITCHAT:
        _need_chitchat()
        check_columns(config, CHITCHAT_COLUMNS, "package")
    else:
        files = locate(config)
        check_columns(config, columns_of(config, files), files.kind)
    return source_stamp(config)


def size_of(config: CorpusConfig) -> int:
    """How many bytes the rows of a source take in memory, about: compressed files are taken to be a fourth of it."""
    if config.source == CHITCHAT:
        return 0
    files = locate(config)
    return sum(files.sizes) * (_COMPRESSED if files.kind == "parquet" else 1)


def shares_of(config: CorpusConfig, by_place: bool = False) -> int:
    """Into how many shares a source is cut; private, as its size is."""
    if _is_placed(config, by_place):
        return _PLACED_SHARES
    return 1 if config.source == CHITCHAT else len(_stripes(locate(config)))


def read_share(config: CorpusConfig, share: int, shares: int, stamp: str, by_place: bool = False) -> Iterator[pa.Table]:
    """The tables of one share: user, text, labels, `by`, `order`; without users a row is its own author, by place."""
    placed = _is_placed(config, by_place)
    pieces = _chitchat(share, placed) if config.source == CHITCHAT else _files(config, share, shares, stamp, placed)
    names = ["text", *config.kept, *(JOINED if config.join else ())]
    for piece in SEAL.each("reading the corpus", pieces):
        rows = piece.select(config.sources).rename_columns([*(["user"] if config.user is not None else []), *names])
        if config.user is None:
            rows = rows.add_column(0, "user", pc.binary_join_element_wise("row", piece[PLACE], " "))
        yield rows.append_column(PLACE, piece[PLACE]) if by_place else rows


def _is_placed(config: CorpusConfig, by_place: bool) -> bool:
    return by_place or config.user is None


def _with_places(pieces: Iterator[pa.Table], file: int, rows: Iterator[int]) -> Iterator[pa.Table]:
    """Add each row's place: the number of its file, and its own there, however texts let the file be cut in pieces."""
    for piece in pieces:
        places = pa.array([f"{file}-{row}" for row in islice(rows, len(piece))], pa.string())
        yield piece.append_column(PLACE, places)


def source_stamp(config: CorpusConfig) -> str:
    """Names the state of the source: another stamp means that the corpus changed and must be sharded again."""
    if config.source == CHITCHAT:
        _need_chitchat()
        return version("chitchat-dataset")
    return locate(config).stamp


def _chitchat(share: int, placed: bool) -> Iterator[pa.Table]:
    if share:
        return  # it is small: the first share is all of it
    _need_chitchat()
    table = _chitchat_table()
    pieces = (table.slice(start, _PIECE_ROWS) for start in range(0, len(table), _PIECE_ROWS))
    yield from _with_places(pieces, 0, count()) if placed else pieces


def _files(config: CorpusConfig, share: int, shares: int, stamp: str, placed: bool) -> Iterator[pa.Table]:
    files = locate(config)
    if files.stamp != stamp:
        raise CorpusError("corpus.source changed while it was read: run again with --resume.")
    filesystem, _ = filesystem_of(config.source)
    numbers = {path: number for number, path in enumerate(files.paths)}
    for path, stripe in (_placed_stripes(files) if placed else _stripes(files))[share::shares]:
        with filesystem.open_input_file(path) as stream:
            pieces = read_pieces(stream, files.kind, config.columns, stripe)
            if placed:
                pieces = _with_places(pieces, numbers[path], row_numbers(stream, files.kind, stripe))
            yield from pieces


def _stripes(files: SourceFiles) -> list[tuple[str, tuple[int, int]]]:
    """What one share is made of: a file, or every n-th row group of a Parquet file, or a stretch of a JSONL file."""
    found = []
    for path, size in zip(files.paths, files.sizes, strict=True):
        each = max(1, -(-size // SHARE_BYTES)) if files.kind != "csv" else 1
        found += [(path, (stripe, each)) for stripe in range(each)]
    return found


def _placed_stripes(files: SourceFiles) -> list[tuple[str, tuple[int, int]]]:
    """The same where rows are counted: files, or the row groups of a few Parquet files in turns."""
    each = max(1, _PLACED_STRIPES // len(files.paths)) if files.kind == "parquet" else 1
    return [(path, (stripe, each)) for path in files.paths for stripe in range(each)]


def _need_chitchat() -> None:
    if find_spec("chitchat_dataset") is None:
        raise CorpusError(
            "corpus.source is 'chitchat', which is not installed: run pip install chitchat-dataset, "
            "or name a .parquet, .jsonl or .csv file."
        )


@sealed("reading chitchat")
def _chitchat_table() -> pa.Table:
    """Every message; its topic is the public question that its conversation was given, null for one without."""
    from chitchat_dataset import Dataset  # an optional package, imported only where it is wanted

    messages = [
        (message["sender"], message["text"], conversation.get("prompt") or None)
        for conversation in Dataset().values()
        for turn in conversation["messages"]
        for message in turn
    ]
    kinds = (pa.string(), pa.large_string(), pa.string())
    columns = [pa.array(values, kind) for values, kind in zip(zip(*messages, strict=True), kinds, strict=True)]
    return pa.table(columns, names=CHITCHAT_COLUMNS)
