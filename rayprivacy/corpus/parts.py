"""Part files: written whole or not at all, byte for byte the same for the same rows, readable by their owner only.

A part is one file, or several where its rows are many: then each holds whole users of a shard, and together they are
the rows of the part in their order.
"""

from collections.abc import Iterator
from itertools import count, takewhile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayprivacy.core.artifacts import digest_bytes
from rayprivacy.core.files import write_atomic
from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.bounding import ranks
from rayprivacy.corpus.layout import HOLDOUT, content_digest
from rayprivacy.corpus.manifest import HOLDOUT_FILE, MANIFEST, FileEntry


def read_part(out: Path, part: int, shards: range | None = None) -> pa.Table:
    """One part's rows: shard, user, record, text and labels, sorted by shard, user and record; all are in memory.

    Arguments as of `part_tables`.
    """
    return pa.concat_tables(part_tables(out, part, shards))


def part_tables(out: Path, part: int, shards: range | None = None) -> Iterator[pa.Table]:
    """One part's rows, file by file: of the users of a shard none is in two tables."""
    wanted = None if shards is None else [("shard", ">=", shards.start), ("shard", "<", shards.stop)]
    return (pq.read_table(path, partitioning=None, filters=wanted) for path in part_paths(out, part))


def owners_of(rows: pa.Table, unit: PrivacyUnit) -> npt.NDArray[np.int64]:
    """For each row of a part a number of its unit (its user, or itself), from 0 on."""
    if unit is PrivacyUnit.RECORD:
        return np.arange(len(rows))
    return ranks(rows["user"])


def part_path(out: Path, part: int, number: int = 0) -> Path:
    """Where one part's rows are: its first file, or another one of a part that has several."""
    return out / _file_name(part, number)


def part_paths(out: Path, part: int) -> list[Path]:
    """All files of a part, in the order of their rows; at least one."""
    more = takewhile(Path.is_file, (part_path(out, part, number) for number in count(1)))
    return [part_path(out, part), *more]


def read_holdout(out: Path) -> pa.Table:
    """The held-out users' rows, with shard -1; all are in memory."""
    return read_part(out, HOLDOUT)


def first_holdout(out: Path, users: int) -> pa.Table:
    """The rows of the first so many held-out users; files behind them are not read."""
    found, left = [], users
    for table in part_tables(out, HOLDOUT):
        names = table["user"].unique()
        found.append(table if len(names) <= left else table.filter(pc.is_in(table["user"], names[:left])))
        left -= len(names)
        if left <= 0:
            break
    return pa.concat_tables(found)


def write_part(
    rows: pa.Table, part: int, key: Key, out: Path, unit: PrivacyUnit = PrivacyUnit.USER, number: int = 0
) -> FileEntry:
    """Write the finished rows of a part, or of one of its files, atomically, with mode 0600."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    data = sink.getvalue()
    name = _file_name(part, number)
    write_atomic(out / name, data)
    users = len(rows["user"].unique())
    return FileEntry(part, name, len(rows), users, digest_bytes(data), content_digest(rows, key, unit))


def clear_parts(out: Path) -> None:
    """Remove the files of an earlier result, and nothing else."""
    # The manifest goes first: without it the directory counts as unfinished.
    for pattern in (MANIFEST, HOLDOUT_FILE, "holdout-*.parquet", "part-*.parquet", ".part-*", ".holdout*"):
        for path in out.glob(pattern):
            path.unlink()


def _file_name(part: int, number: int) -> str:
    stem = Path(HOLDOUT_FILE).stem if part == HOLDOUT else f"part-{part:05d}"
    return f"{stem}-{number:05d}.parquet" if number else f"{stem}.parquet"
