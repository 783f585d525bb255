"""Part files: written whole or not at all, byte for byte the same for the same rows, readable by their owner only."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rayprivacy.core.artifacts import digest_bytes
from rayprivacy.core.files import write_atomic
from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.layout import HOLDOUT, content_digest
from rayprivacy.corpus.manifest import HOLDOUT_FILE, MANIFEST, FileEntry


def read_part(out: Path, part: int) -> pa.Table:
    """One part's rows: shard, user, record, text and labels, sorted by shard, user and record."""
    return pq.read_table(part_path(out, part), partitioning=None)


def owners_of(rows: pa.Table, unit: PrivacyUnit) -> npt.NDArray[np.int64]:
    """For each row of a part a number of its unit (its user, or itself), from 0 on."""
    if unit is PrivacyUnit.RECORD:
        return np.arange(len(rows))
    users = np.array(rows["user"].to_pylist(), dtype=object)
    return np.asarray(np.unique(users, return_inverse=True)[1], np.int64)


def part_path(out: Path, part: int) -> Path:
    """Where one part's rows are."""
    return out / _file_name(part)


def read_holdout(out: Path) -> pa.Table:
    """The held-out users' rows, with shard -1."""
    return read_part(out, HOLDOUT)


def write_part(rows: pa.Table, part: int, key: Key, out: Path, unit: PrivacyUnit = PrivacyUnit.USER) -> FileEntry:
    """Write the finished rows of a part atomically, with mode 0600."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    data = sink.getvalue().to_pybytes()
    write_atomic(out / _file_name(part), data)
    users = len(rows["user"].unique())
    return FileEntry(part, _file_name(part), len(rows), users, digest_bytes(data), content_digest(rows, key, unit))


def clear_parts(out: Path) -> None:
    """Remove the files of an earlier result, and nothing else."""
    # The manifest goes first: without it the directory counts as unfinished.
    for pattern in (MANIFEST, HOLDOUT_FILE, "part-*.parquet", ".part-*", f".{HOLDOUT_FILE}.*"):
        for path in out.glob(pattern):
            path.unlink()


def _file_name(part: int) -> str:
    return HOLDOUT_FILE if part == HOLDOUT else f"part-{part:05d}.parquet"
