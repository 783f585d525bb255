"""The files of a sharded corpus and their manifest: what was written, in private counts and digests.

A part is one file, or several with whole users of a shard each. Files are written whole or not at all, byte for byte
the same for the same rows, readable by their owner only; `manifest.json`, whose counts are private, comes last.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count, takewhile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayprivacy.core.errors import ShardError
from rayprivacy.core.files import Json, read_json, write_atomic, write_json
from rayprivacy.core.keys import Key
from rayprivacy.core.private import digest_bytes, digest_file, digest_json
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.layout import HOLDOUT, add_digests, content_digest
from rayprivacy.corpus.users import Dropped, ranks

MANIFEST = "manifest.json"
HOLDOUT_FILE = "holdout.parquet"
_SCHEMA_VERSION = 1


@dataclass(frozen=True, repr=False)
class FileEntry:
    """One file: its part, name, private counts, and the digests of its bytes (plain) and content (keyed)."""

    part: int
    file: str
    rows: int
    users: int
    sha256: str
    content: str

    def check(self, out: Path) -> None:
        """Compare the file's bytes with its digest; ShardError if it is missing or was changed."""
        path = out / self.file
        if not path.is_file() or digest_file(path) != self.sha256:
            state = "was changed after it was written" if path.is_file() else "is missing"
            raise ShardError(f"{self.file} {state}: delete the shard directory and shard the corpus again.")


@dataclass(frozen=True, repr=False)
class ShardManifest:
    """All files of a sharded corpus and their settings; part p holds `per_part` shards from p * per_part up."""

    config: str  # keyed digest of the settings and of the state of the source
    shards: int
    per_part: int
    max_records_per_user: int | None  # None for unit 'record', which spreads a user over shards
    holdout_share: float  # the probability of a user's hold-out coin
    parts: tuple[FileEntry, ...]  # the first file of every part, in order
    holdout: FileEntry  # the first file of the held-out users
    dropped: Dropped
    unit: PrivacyUnit = PrivacyUnit.USER
    max_shards_per_phrase: int | None = None
    more: tuple[FileEntry, ...] = ()  # further files of parts that are split, in order, also of the hold-out
    version: str = ""  # which version of which kind of table the source is a copy of; empty for files

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """All files, part by part, those of the hold-out last; the files of a part in the order of their rows."""
        return (*self.training_files, self.holdout, *(entry for entry in self.more if entry.part < 0))

    @property
    def training_files(self) -> tuple[FileEntry, ...]:
        """The files of all parts."""
        more = [entry for entry in self.more if entry.part >= 0]
        return tuple(sorted((*self.parts, *more), key=lambda entry: entry.part))  # stable

    @property
    def users(self) -> int:
        """The private number of users, held-out ones included; unit 'record' counts a user once for each file."""
        return sum(entry.users for entry in self.files)

    @property
    def rows(self) -> int:
        """The private number of records, held-out ones included."""
        return sum(entry.rows for entry in self.files)

    def corpus_digest(self, key: Key) -> str:
        """Name the content without revealing a checkable hash of it; blocks, parts and shards do not matter."""
        training = [entry.content for entry in self.training_files]
        heldout = [entry.content for entry in self.files if entry.part < 0]
        return key.digest("corpus", add_digests(training), add_digests(heldout))

    def write(self, out: Path) -> None:
        """Write `manifest.json`, private and atomically."""
        write_json(out / MANIFEST, self._body() | {"digest": digest_json(self._body())})

    def check_files(self, out: Path) -> None:
        """Compare every file's bytes with its digest; ShardError if one is missing or was changed."""
        for entry in self.files:
            entry.check(out)

    def _body(self) -> Json:
        return {"schema_version": _SCHEMA_VERSION} | asdict(self)


def read_manifest(out: Path) -> ShardManifest:
    """Read `manifest.json`; ShardError if it is missing, of another version, or was changed."""
    if not (out / MANIFEST).is_file():
        raise ShardError("the shard directory has no manifest.json: shard the corpus first.")
    body = read_json(out / MANIFEST)
    digest = body.pop("digest", None)
    if digest != digest_json(body) or body.pop("schema_version") != _SCHEMA_VERSION:
        raise ShardError("manifest.json was changed, or is of another version: delete the shard directory.")
    body["unit"] = PrivacyUnit(body["unit"])
    body["parts"] = tuple(FileEntry(**entry) for entry in body["parts"])
    body["holdout"] = FileEntry(**body["holdout"])
    body["more"] = tuple(FileEntry(**entry) for entry in body["more"])
    body["dropped"] = Dropped(**body["dropped"])
    return ShardManifest(**body)


def read_part(out: Path, part: int, shards: range | None = None) -> pa.Table:
    """One part's rows in memory: shard, user, record, text and labels, sorted by shard, user and record."""
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
    """The rows of the first `users` held-out users; files behind them are not read."""
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
