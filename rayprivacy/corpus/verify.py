"""Check the shards again, from the files, the manifest and the key alone.

Independent on purpose: the rules "one user, one shard", "one record, one shard" and "one phrase, n_s shards" stand
here a second time, straight from the PRF, so that a fault in the code that made the shards is not repeated by the
code that checks them. Phrases are looked for by other means than `phrases` masks them: a text becomes one string of its
canonical words with a space around each, read character by character, and a phrase is a substring of it.

Ray checks file by file; the driver learns that it is done, or one sentence.
"""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayprivacy.core.errors import ShardError
from rayprivacy.core.keys import Key, load_key
from rayprivacy.core.private import Seal
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.layout import content_digest
from rayprivacy.corpus.manifest import FileEntry, ShardManifest, read_manifest
from rayprivacy.corpus.phrases import PhraseFile, Phrases
from rayprivacy.corpus.users import PLACE
from rayprivacy.work.mapping import on_numbers

SEAL = Seal(ShardError, "delete the shard directory and shard the corpus again")
_STEP = "verifying the shards"
Place = tuple[int, int, str]  # shard, and of the user their number of 64 bits and id


@SEAL.around(_STEP)
def verify_shards(out: Path, key: Key, unit: PrivacyUnit = PrivacyUnit.USER, phrases: Phrases | None = None) -> None:
    """Check places, bounds and digests of all files; an error names the file and the rule, never a user or a phrase."""
    manifest = read_manifest(out)
    check_unit(manifest, unit, phrases is not None)
    for number in range(len(manifest.files)):
        verify_file(out, manifest, number, key, phrases)


def check_unit(manifest: ShardManifest, unit: PrivacyUnit, has_phrases: bool) -> None:
    """Require shards of the unit that is to be protected."""
    if manifest.unit is not unit or has_phrases is not (unit is PrivacyUnit.PHRASE):
        raise ShardError(f"the shards are of unit '{manifest.unit}', not '{unit}' with its settings: shard them again.")


def verify_file(out: Path, manifest: ShardManifest, number: int, key: Key, phrases: Phrases | None) -> None:
    """Check one file, and that it ends before the next of its part begins; a user's shard follows from the key."""
    entry = manifest.files[number]
    entry.check(out)
    table = pq.read_table(out / entry.file, partitioning=None)
    places = _places(table, entry, key, manifest.max_records_per_user)
    first, last = (entry.part * manifest.per_part, (entry.part + 1) * manifest.per_part) if entry.part >= 0 else (-1, 0)
    _require(all(first <= shard < last for shard, _, _ in places), entry, "holds a shard of another part")
    if manifest.unit is PrivacyUnit.RECORD:
        _check_records(table, entry, key, manifest)
    else:
        _check_users(places, entry, key, manifest)
    _require(all(one < other for one, other in pairwise(places)), entry, "is not sorted by shard and user")
    _check_order(out, manifest, number, places, key)
    misplaced = phrases is not None and _holds_misplaced(table, key, manifest, phrases)
    _require(not misplaced, entry, "holds a secret phrase in a shard where it must be masked")
    counted = (len(table), len({user for _, _, user in places})) == (entry.rows, entry.users)
    digest = content_digest(table, key, manifest.unit)
    _require(counted and digest == entry.content, entry, "does not match the manifest")


def _places(table: pa.Table, entry: FileEntry, key: Key, most: int | None) -> list[Place]:
    """The places of all runs of rows that agree in shard and user."""
    shards, records = table["shard"].to_numpy(), table["record"].to_numpy()
    if not len(table):
        return []
    users = table["user"].combine_chunks()
    new = ~pc.equal(users[:-1], users[1:]).to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.append(True, (np.diff(shards) != 0) | new))
    lengths = np.diff(starts, append=len(table))
    gapless = np.array_equal(records, np.arange(len(table)) - np.repeat(starts, lengths))
    _require(gapless, entry, "has a gap or a repeat in a user's records")
    _require(most is None or bool((lengths <= most).all()), entry, f"holds more than {most} records of a user")
    names = users.take(pa.array(starts)).to_pylist()
    return [(shard, _number(user, key), user) for shard, user in zip(shards[starts].tolist(), names, strict=True)]


def _number(user: str, key: Key) -> int:
    return key.integer("shard", user) // 2**192


def _check_users(places: list[Place], entry: FileEntry, key: Key, manifest: ShardManifest) -> None:
    for shard, _, user in places:
        expected = -1 if _held_out(user, key, manifest) else key.integer("shard", user) % manifest.shards
        _require(shard == expected, entry, "holds a user whom the key puts elsewhere")
    users = {user for _, _, user in places}
    _require(len(users) == len(places), entry, "holds a user twice")


def _check_order(out: Path, manifest: ShardManifest, number: int, places: list[Place], key: Key) -> None:
    """Whatever stands in another file of the part stands behind this one, so that no user is in two files."""
    entry, following = manifest.files[number], manifest.files[number + 1 :]
    for later in following:
        if later.part != entry.part or not places:
            return
        if later.rows:
            path = out / later.file
            if not path.is_file():  # it has a check of its own, which may come later
                later.check(out)
            _require(places[-1] < _first_place(path, key), later, "begins before the file in front of it ends")
            return


def _first_place(path: Path, key: Key) -> Place:
    with pq.ParquetFile(path) as file:
        row = next(file.iter_batches(1, columns=["shard", "user"])).to_pylist()[0]
    return row["shard"], _number(row["user"], key), row["user"]


def _check_records(table: pa.Table, entry: FileEntry, key: Key, manifest: ShardManifest) -> None:
    # Equal records have equal shards, hence one file: within files is all that needs to be looked for.
    seen: set[tuple[str | None, ...]] = set()
    labels = table.column_names[4:]  # after shard, user, record and text
    for row in table.to_pylist():
        record = (row["user"], row["text"], *(row[name] for name in labels))
        named = ["" if value is None else f"={value}" for value in record]
        parts = [row["user"], row[PLACE]] if PLACE in row else named
        expected = key.integer("record-shard", *parts) % manifest.shards
        expected = -1 if _held_out(row["user"], key, manifest) else expected
        _require(row["shard"] == expected, entry, "holds a record that the key puts elsewhere")
        _require(record not in seen, entry, "holds a record twice")
        seen.add(record)


def _held_out(user: str, key: Key, manifest: ShardManifest) -> bool:
    return key.integer("holdout", user) < int(manifest.holdout_share * 2**256)


def _require(holds: bool, entry: FileEntry, fault: str) -> None:
    if not holds:
        raise ShardError(f"{entry.file} {fault}: delete the shard directory and shard the corpus again.")


def shards_per_phrase(out: Path, manifest: ShardManifest, phrases: Phrases) -> dict[int, int]:
    """In how many shards each phrase occurs after masking, by its number. The counts are private."""
    files = (out / entry.file for entry in manifest.training_files)
    tables = (pq.read_table(file, columns=["shard", "text"], partitioning=None) for file in files)
    counts = Counter(number for _, number in {each for table in tables for each in _occurrences(table, phrases)})
    return {number: counts[number] for number in range(len(phrases.words))}


def _holds_misplaced(table: pa.Table, key: Key, manifest: ShardManifest, phrases: Phrases) -> bool:
    allowed = cache(lambda number: _allowed(phrases.words[number], key, manifest))
    return any(shard not in allowed(number) for shard, number in _occurrences(table, phrases))


def _occurrences(table: pa.Table, phrases: Phrases) -> Iterator[tuple[int, int]]:
    """Shard and number of each phrase of each row; held-out rows are not looked at."""
    by_first = defaultdict(list)
    for number, words in enumerate(phrases.words):
        by_first[words[0]].append((number, f" {' '.join(words)} "))
    for shard, text in zip(table["shard"].to_pylist(), table["text"].to_pylist(), strict=True):
        if shard < 0:
            continue
        line = _line(text)
        for word in by_first.keys() & set(line.split(" ")):
            for number, phrase in by_first[word]:
                if phrase in line:
                    yield shard, number


def _line(text: str) -> str:
    spaced = "".join(
        char if char.isalnum() or char == "_" or unicodedata.category(char)[0] == "M" else " "
        for char in unicodedata.normalize("NFC", text)
    )
    words = (unicodedata.normalize("NFC", word.casefold()) for word in spaced.split(" ") if word)
    return f" {' '.join(words)} "


def _allowed(words: tuple[str, ...], key: Key, manifest: ShardManifest) -> list[int]:
    shards: list[int] = []
    draw = 0
    while len(shards) < (manifest.max_shards_per_phrase or 0):
        shard = key.integer("phrase-shard", draw, *words) % manifest.shards
        shards += [shard] if shard not in shards else []
        draw += 1
    return shards


@SEAL.around(_STEP)
def verify_with_ray(out: Path, key_path: Path, unit: PrivacyUnit, phrases: PhraseFile | None = None) -> None:
    """Do what `verify_shards` does. Ray must be started."""
    manifest = read_manifest(out)
    check_unit(manifest, unit, phrases is not None)
    _every_file(_verify, _Files(out.absolute(), key_path.absolute(), phrases), manifest)


def check_files(out: Path, manifest: ShardManifest) -> None:
    """Compare the bytes of every file with its digest. Ray must be started."""
    _every_file(_check, _Files(out.absolute()), manifest)


@dataclass(frozen=True)
class _Files:
    """Where the files are, and what it takes to check them; holds no row."""

    out: Path
    key_path: Path = Path()
    phrases: PhraseFile | None = None


def _every_file(work: Callable[[_Files, int], None], files: _Files, manifest: ShardManifest) -> None:
    for _ in on_numbers(work, files, range(len(manifest.files)), _STEP, SEAL):
        pass


@SEAL.around(_STEP)
def _verify(files: _Files, number: int) -> None:
    key, phrases = load_key(files.key_path), files.phrases
    verify_file(files.out, read_manifest(files.out), number, key, phrases.load(key) if phrases else None)


@SEAL.around(_STEP)
def _check(files: _Files, number: int) -> None:
    read_manifest(files.out).files[number].check(files.out)
