"""Find the files behind `corpus.source` and look at their columns, before any heavy work.

Only the source as the recipe writes it is ever named in an error: a file in a directory may be named after a user. The
columns of a Parquet file are named, because they come from its schema; those of CSV and JSONL are not, because they are
the first line of the file, which is a private record where a header was forgotten.
"""

import csv
import io
import json
import os
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from rayprivacy.core.artifacts import digest_json
from rayprivacy.core.errors import CorpusError
from rayprivacy.core.mirror.uris import is_uri, open_uri, shown
from rayprivacy.corpus.sealing import sealed
from rayprivacy.corpus.settings import CorpusConfig

FORMATS = ("parquet", "jsonl", "csv")
_FIRST_LINE = {
    "csv": "the first line of a CSV file is taken as its header",
    "jsonl": "the keys of the first line of a JSONL file are taken as its columns",
}


@dataclass(frozen=True)
class SourceFiles:
    """The files of one source, all of one format.

    Attributes:
        kind: one of `FORMATS`.
        paths: sorted paths inside the filesystem.
        sizes: bytes of each.
        stamp: digest of names, sizes and modification times: a changed source is a new corpus.
    """

    kind: str
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    stamp: str


def filesystem_of(source: str) -> tuple[fs.FileSystem, str]:
    """The pyarrow filesystem of a path or URI, and the path inside it."""
    if not is_uri(source):
        return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(source))
    return open_uri("corpus.source", source, CorpusError)


@sealed("listing the corpus")
def locate(config: CorpusConfig) -> SourceFiles:
    """List the source's files."""
    filesystem, path = filesystem_of(config.source)
    info = filesystem.get_file_info(path)
    if info.type == fs.FileType.NotFound:
        raise CorpusError(f"corpus.source is '{shown(config.source)}', which does not exist: correct the path.")
    found = [info] if info.type == fs.FileType.File else _inside(filesystem, path)
    kinds = {kind for file in found if (kind := _kind(file.base_name)) in FORMATS}
    if len(kinds) != 1:
        what = f"mixes {' and '.join(sorted(kinds))} files" if kinds else "has no known extension"
        raise CorpusError(f"corpus.source is '{shown(config.source)}', which {what}: give .parquet, .jsonl or .csv.")
    files = sorted((file for file in found if _kind(file.base_name) in kinds), key=lambda file: str(file.path))
    stamp = digest_json([[file.path[len(path) :], file.size, file.mtime_ns] for file in files])
    paths, sizes = tuple(file.path for file in files), tuple(int(file.size) for file in files)
    return SourceFiles(kinds.pop(), paths, sizes, stamp)


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


def _inside(filesystem: fs.FileSystem, path: str) -> list[fs.FileInfo]:
    found = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    # As in Spark and Arrow, names that start with a dot or an underscore are markers, not data.
    return [file for file in found if file.type == fs.FileType.File and file.base_name[0] not in "._"]


def _kind(name: str) -> str:
    return os.path.splitext(name)[1].lstrip(".").lower()
