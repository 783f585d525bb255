"""Look for secret phrases in finished shards, by other means than `phrases` masks them; and count where they stayed.

Here a text becomes one string of its canonical words with a space around each, read character by character, and a
phrase is a substring of it. Which shards may hold a phrase is written down a second time, straight from the PRF.
"""

import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rayprivacy.core.keys import Key
from rayprivacy.corpus.manifest import ShardManifest
from rayprivacy.corpus.phrases import Phrases


def misplaced_phrase(table: pa.Table, key: Key, manifest: ShardManifest, phrases: Phrases) -> bool:
    """Whether a phrase occurs in a shard that the key does not allow; held-out rows are not looked at."""
    allowed: dict[int, list[int]] = {}
    for shard, number in _occurrences(table, phrases):
        if number not in allowed:
            allowed[number] = _allowed(phrases.words[number], key, manifest)
        if shard not in allowed[number]:
            return True
    return False


def shards_per_phrase(out: Path, manifest: ShardManifest, phrases: Phrases) -> dict[int, int]:
    """In how many shards each phrase occurs after masking, by its number. The counts are private."""
    found: dict[int, set[int]] = {number: set() for number in range(len(phrases.words))}
    for entry in manifest.training_files:
        table = pq.read_table(out / entry.file, columns=["shard", "text"], partitioning=None)
        for shard, number in _occurrences(table, phrases):
            found[number].add(shard)
    return {number: len(shards) for number, shards in found.items()}


def _occurrences(table: pa.Table, phrases: Phrases) -> Iterator[tuple[int, int]]:
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
