"""Check the shards again, from the files, the manifest and the key alone.

Independent on purpose: the rules "one user, one shard" and "one record, one shard" are written down here a second time,
straight from the PRF, so that a fault in the code that made the shards is not repeated by the code that checks them.
`verify_phrases` does the same for "one phrase, n_s shards".
"""

from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rayprivacy.core.errors import ShardError
from rayprivacy.core.keys import Key
from rayprivacy.core.sealing import Seal
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.layout import content_digest
from rayprivacy.corpus.manifest import FileEntry, ShardManifest, read_manifest
from rayprivacy.corpus.phrases import Phrases
from rayprivacy.corpus.verify_phrases import misplaced_phrase

_SEAL = Seal(ShardError, "delete the shard directory and shard the corpus again")


@_SEAL.around("verifying the shards")
def verify_shards(out: Path, key: Key, unit: PrivacyUnit = PrivacyUnit.USER, phrases: Phrases | None = None) -> None:
    """Check that each user or record sits where the key says, in one file, within the bounds, and that digests match.

    Raises:
        ShardError: one sentence that names the file and the rule, never a user or a phrase.
    """
    manifest = read_manifest(out)
    if manifest.unit is not unit or (phrases is None) is (unit is PrivacyUnit.PHRASE):
        raise ShardError(f"the shards are of unit '{manifest.unit}', not '{unit}' with its settings: shard them again.")
    manifest.check_files(out)
    seen: set[str] = set()
    for entry in manifest.files:
        table = pq.read_table(out / entry.file, partitioning=None)
        runs = _runs(table, entry, manifest.max_records_per_user)
        users = {user for user, _ in runs}
        _require(all(shard in _range(entry, manifest) for _, shard in runs), entry, "holds a shard of another part")
        if unit is PrivacyUnit.RECORD:
            _check_records(table, entry, key, manifest)
        else:
            _check_users(runs, entry, key, manifest, seen)
        misplaced = phrases is not None and misplaced_phrase(table, key, manifest, phrases)
        _require(not misplaced, entry, "holds a secret phrase in a shard where it must be masked")
        counted = (len(table), len(users)) == (entry.rows, entry.users)
        _require(counted and content_digest(table, key, unit) == entry.content, entry, "does not match the manifest")


def _runs(table: pa.Table, entry: FileEntry, most: int | None) -> list[tuple[str, int]]:
    columns = [table[name].to_pylist() for name in ("shard", "user", "record")]
    rows: Any = list(zip(*columns, strict=True))
    _require(rows == sorted(rows), entry, "is not sorted by shard, user and record")
    users = []
    for (shard, user), run in groupby(rows, key=lambda row: row[:2]):
        ranks = [record for _, _, record in run]
        _require(ranks == list(range(len(ranks))), entry, "has a gap or a repeat in a user's records")
        _require(most is None or len(ranks) <= most, entry, f"holds more than {most} records of a user")
        users.append((user, shard))
    return users


def _check_users(
    runs: list[tuple[str, int]], entry: FileEntry, key: Key, manifest: ShardManifest, seen: set[str]
) -> None:
    for user, shard in runs:
        expected = -1 if _held_out(user, key, manifest) else key.integer("shard", user) % manifest.shards
        _require(shard == expected, entry, "holds a user whom the key puts elsewhere")
        _require(user not in seen, entry, "holds a user twice, or one whom another file holds as well")
        seen.add(user)


def _check_records(table: pa.Table, entry: FileEntry, key: Key, manifest: ShardManifest) -> None:
    # Equal records have equal shards, hence one file: within files is all that needs to be looked for.
    seen: set[tuple[str | None, ...]] = set()
    labels = table.column_names[4:]  # after shard, user, record and text
    for row in table.to_pylist():
        record = (row["user"], row["text"], *(row[name] for name in labels))
        parts = ("" if value is None else f"={value}" for value in record)
        expected = key.integer("record-shard", *parts) % manifest.shards
        expected = -1 if _held_out(row["user"], key, manifest) else expected
        _require(row["shard"] == expected, entry, "holds a record that the key puts elsewhere")
        _require(record not in seen, entry, "holds a record twice")
        seen.add(record)


def _held_out(user: str, key: Key, manifest: ShardManifest) -> bool:
    return key.integer("holdout", user) < int(manifest.holdout_share * 2**256)


def _range(entry: FileEntry, manifest: ShardManifest) -> range:
    first = entry.part * manifest.per_part
    return range(first, first + manifest.per_part) if entry.part >= 0 else range(-1, 0)


def _require(holds: bool, entry: FileEntry, fault: str) -> None:
    if not holds:
        raise ShardError(f"{entry.file} {fault}: delete the shard directory and shard the corpus again.")
