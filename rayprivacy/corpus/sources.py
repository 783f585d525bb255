"""The private corpus as tables of user, text and labels, in shares that several tasks read.

The readers are ours (see `readers`): Ray's CSV reader quotes the row it fails on and infers types piece by piece, and
its blocks are counted where others can see it (see `spill`). Names and columns are checked first, so that a typo costs
nothing. How many shares there are follows the size of the source, and is as private as that (see `piecework`).
"""

from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from itertools import count, islice

import pyarrow as pa
import pyarrow.compute as pc

from rayprivacy.core.errors import CorpusError
from rayprivacy.corpus.bounding import PLACE
from rayprivacy.corpus.join import JOINED
from rayprivacy.corpus.listing import SourceFiles, check_columns, columns_of, filesystem_of, locate
from rayprivacy.corpus.readers import read_pieces, row_numbers
from rayprivacy.corpus.sealing import sealed
from rayprivacy.corpus.settings import CorpusConfig

CHITCHAT = "chitchat"
CHITCHAT_COLUMNS = ["user", "text", "topic"]
SHARE_BYTES = 16 << 20  # of a file that several shares read, about
_PIECE_ROWS = 65_536
_PLACED_SHARES, _PLACED_STRIPES = 16, 8  # of a source whose rows are known by their place, and of one of its files


def check_source(config: CorpusConfig) -> str:
    """Require the source and its columns; returns its stamp, which another state of the source does not have."""
    if config.source == CHITCHAT:
        _need_chitchat()
        check_columns(config, CHITCHAT_COLUMNS, "package")
    else:
        files = locate(config)
        check_columns(config, columns_of(config, files), files.kind)
    return source_stamp(config)


def shares_of(config: CorpusConfig, by_place: bool = False) -> int:
    """Into how many shares a source is cut; private, as its size is."""
    if _is_placed(config, by_place):
        return _PLACED_SHARES
    return 1 if config.source == CHITCHAT else len(_stripes(locate(config)))


def read_share(config: CorpusConfig, share: int, shares: int, stamp: str, by_place: bool = False) -> Iterator[pa.Table]:
    """The tables of one share of the source, with its columns renamed to user, text, the labels, `by` and `order`.

    A row of a source without users is its own author, named by its place, so that equal texts stay several.
    """
    placed = _is_placed(config, by_place)
    pieces = _chitchat(share, placed) if config.source == CHITCHAT else _files(config, share, shares, stamp, placed)
    advance = sealed("reading the corpus")(next)
    names = ["text", *config.kept, *(JOINED if config.join else ())]
    while (piece := advance(pieces, None)) is not None:
        rows = piece.select(config.sources).rename_columns([*(["user"] if config.user is not None else []), *names])
        if config.user is None:
            rows = rows.add_column(0, "user", pc.binary_join_element_wise("row", piece[PLACE], " "))
        yield rows.append_column(PLACE, piece[PLACE]) if by_place else rows


def _is_placed(config: CorpusConfig, by_place: bool) -> bool:
    return by_place or config.user is None


def _with_places(pieces: Iterator[pa.Table], file: int, rows: Iterator[int]) -> Iterator[pa.Table]:
    """Add each row's place: the number of its file among those of the source, and its own in the file.

    It is the same however a file is cut into stripes, pieces and row groups, whose borders may follow what texts hold.
    """
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
