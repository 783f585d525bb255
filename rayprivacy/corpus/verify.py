"""Check the shards again, from the files, the manifest and the key alone.

Independent on purpose: the rule "one user, one shard" is written down here a second time, straight from the PRF, so
that a fault in the code that made the shards is not repeated by the code that checks them.
"""

from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rayprivacy.core.errors import ShardError
from rayprivacy.core.keys import Key
from rayprivacy.corpus.layout import content_digest
from rayprivacy.corpus.manifest import FileEntry, ShardManifest, read_manifest


def verify_shards(out: Path, key: Key) -> None:
    """Check that each user sits where the key says, in one file, within the bound, and that all digests match.

    Raises:
        ShardError: one sentence that names the file and the rule, never a user.
    """
    manifest = read_manifest(out)
    manifest.check_files(out)
    seen: set[str] = set()
    for entry in manifest.files:
        table = pq.read_table(out / entry.file, partitioning=None)
        users = _runs(table, entry, manifest.max_records_per_user)
        for user, shard in users:
            _require(shard == _expected(user, key, manifest), entry, "holds a user whom the key puts elsewhere")
            _require(shard in _range(entry, manifest), entry, "holds a shard of another part")
            _require(user not in seen, entry, "holds a user twice, or one whom another file holds as well")
            seen.add(user)
        counted = (len(table), len(users)) == (entry.rows, entry.users)
        _require(counted and content_digest(table, key) == entry.content, entry, "does not match the manifest")


def _runs(table: pa.Table, entry: FileEntry, most: int) -> list[tuple[str, int]]:
    columns = [table[name].to_pylist() for name in ("shard", "user", "record")]
    rows: Any = list(zip(*columns, strict=True))
    _require(rows == sorted(rows), entry, "is not sorted by shard, user and record")
    users = []
    for (shard, user), run in groupby(rows, key=lambda row: row[:2]):
        ranks = [record for _, _, record in run]
        _require(ranks == list(range(len(ranks))), entry, "has a gap or a repeat in a user's records")
        _require(len(ranks) <= most, entry, f"holds more than {most} records of a user")
        users.append((user, shard))
    return users


def _expected(user: str, key: Key, manifest: ShardManifest) -> int:
    if key.integer("holdout", user) < int(manifest.holdout_share * 2**256):
        return -1
    return key.integer("shard", user) % manifest.shards


def _range(entry: FileEntry, manifest: ShardManifest) -> range:
    first = entry.part * manifest.per_part
    return range(first, first + manifest.per_part) if entry.part >= 0 else range(-1, 0)


def _require(holds: bool, entry: FileEntry, fault: str) -> None:
    if not holds:
        raise ShardError(f"{entry.file} {fault}: delete the shard directory and shard the corpus again.")
