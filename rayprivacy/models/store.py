"""Cached trunk states of private text: each group of documents goes through the trunk once per corpus and base.

A group (a user, or a shard) is named by a keyed digest of its texts, so its states serve any number of teachers, and a
changed user costs that user's group. The folder is private: files of mode 0600 in a folder of mode 0700. The store
travels to Ray actors as paths; the key and the list of chunks are read there, once per process.

A chunk is one file of tensors for some groups, and a line in the journal that comes last. It is named by its group
names and its bytes, so that two writers of the same groups, on machines that differ in the last bit, leave two whole
chunks and never one chunk with the other's line. The line is authenticated with the run's key: rows of one group are
never taken for those of another. Unreadable lines are ignored, and a damaged chunk is deleted when it is found, so that
the next run computes its groups anew.

"""

import os
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import safe_open
from safetensors.torch import save

from rayprivacy.core.errors import ShardError
from rayprivacy.core.files import TABLE, Journal, Line, private_directory, write_atomic
from rayprivacy.core.keys import Key, load_key
from rayprivacy.core.private import digest_bytes, digest_file, digest_json
from rayprivacy.models.features import Encoded, join

STALE_S = 600  # a writer, perhaps of another run, is between a file and its line for a second
_OWN = re.compile(r"\.?[0-9a-f]{32}-[0-9a-f]{16}\.safetensors(\.json)?(\.\d+)?")


class Place(NamedTuple):
    """Where a group is: rows first to end, exclusive, of a chunk file."""

    chunk: str
    first: int
    end: int


class Chunks:
    """The chunk files of one folder as one process knows them; the key authenticates their lines."""

    def __init__(self, folder: Path, key: Key) -> None:
        self._folder = folder
        self._key = key
        self._journal = Journal(folder)
        self._digests: dict[str, str] = {}
        self._places: dict[str, Place] = {}
        self._checked: set[tuple[str, int, int, int]] = set()

    def find(self, names: Sequence[str]) -> list[Place | None]:
        """Where groups are, as far as this process knows."""
        return [self._places.get(name) for name in names]

    def scan(self) -> None:
        """Look for chunks that came or went since the last time."""
        void, lines = self._journal.news()
        if void:
            self._digests.clear()
            self._places.clear()
        for line in lines:
            body = {name: value for name, value in line.items() if name not in ("file", "seal")}
            if line.get("seal") == self._seal(line["file"], body):
                self._learn(line)

    def _learn(self, line: Line) -> None:
        chunk = line["file"]
        self._digests[chunk] = line["sha256"]
        for name, first, end in line["groups"]:
            place = Place(chunk, first, end)
            self._places[name] = min(place, self._places.get(name, place))  # every process takes the same of two

    def _seal(self, chunk: str, body: Mapping[str, object]) -> str:
        return self._key.digest("features-marker", chunk, digest_json(body))

    def write(self, groups: Mapping[str, Encoded]) -> None:
        """Store some groups in one file, then its line."""
        whole = join(list(groups.values()), 0, 0)
        data = save({"ids": whole.ids.int(), "segment": whole.segment.int(), "hidden": whole.hidden})
        content = digest_json(list(groups))[:32]
        digest = digest_bytes(data)
        chunk = f"{content}-{digest[:16]}.safetensors"
        write_atomic(self._folder / chunk, data)
        sizes = {"row_tokens": whole.ids.shape[1], "width": whole.hidden.shape[2]}
        ends = zip(groups.items(), accumulate(map(len, groups.values())), strict=True)
        spans = [[name, end - len(encoded), end] for (name, encoded), end in ends]
        body = {"sha256": digest, **sizes, "groups": spans}
        self._journal.add(chunk, {**body, "seal": self._seal(chunk, body)})

    def read(self, places: Sequence[Place]) -> list[Encoded]:
        """The groups at these places, in order; each chunk is opened once, and a damaged one is deleted and refused."""
        by_chunk: dict[str, set[Place]] = defaultdict(set)
        for place in places:
            by_chunk[place.chunk].add(place)
        found: dict[Place, Encoded] = {}
        for chunk, wanted in by_chunk.items():
            self._check(chunk)
            with safe_open(self._folder / chunk, framework="pt") as file:
                tensors = {name: file.get_slice(name) for name in ("ids", "segment", "hidden")}
                found.update({place: _rows(tensors, place) for place in wanted})
        return [found[place] for place in places]

    def _check(self, chunk: str) -> None:
        path = self._folder / chunk
        try:
            stat = path.stat()
            stamp = (chunk, stat.st_ino, stat.st_size, stat.st_mtime_ns)
            intact = stamp in self._checked or digest_file(path) == self._digests[chunk]
        except OSError:
            intact = False
        if not intact:
            path.unlink(missing_ok=True)
            self.scan()
            raise ShardError("a file of cached features was damaged and has been deleted: run again with --resume.")
        self._checked.add(stamp)

    def tidy(self) -> None:
        """Delete what killed writers left: scratch files, and chunks that have no line."""
        self.scan()
        for name in set(_listed(self._folder)) - self._journal.files:
            path = self._folder / name
            if _OWN.fullmatch(name) and time.time() - path.stat().st_mtime > STALE_S:
                path.unlink(missing_ok=True)


def delete_chunks(folder: Path) -> int:
    """Delete a store's folder, unless something else lies in it; returns the bytes freed."""
    names = _listed(folder)
    if not all(_OWN.fullmatch(name) or TABLE.fullmatch(name) for name in names):
        raise ShardError(f"{folder} is to be deleted and holds files that are not cached features: move them away.")
    freed = sum((folder / name).stat().st_size for name in names)
    for name in names:
        (folder / name).unlink(missing_ok=True)
    if folder.exists():
        folder.rmdir()
    return freed


def _listed(folder: Path) -> Sequence[str]:
    return os.listdir(folder) if folder.is_dir() else ()


def _rows(tensors: Mapping[str, Any], place: Place) -> Encoded:
    ids, segment, hidden = (tensors[name][place.first : place.end] for name in ("ids", "segment", "hidden"))
    return Encoded(ids.long(), segment.long(), hidden)


@dataclass(frozen=True)
class FeatureStore:
    """Cached trunk states of groups of private documents, named by a keyed digest of the documents."""

    root: Path  # the folder of all stores; this one lies in a folder of it that the recipe digest names
    recipe: str  # digest of everything public that decides the states (base, tokens, rows, cut)
    key_path: Path  # file of the run's secret

    @property
    def folder(self) -> Path:
        """Where this store's files are."""
        return self.root.absolute() / self.recipe[:16]

    @property
    def _chunks(self) -> Chunks:
        return _open(self.folder, self.key_path.absolute())

    def prepare(self) -> None:
        """Make the folder, for the owner only, without what a killed run left half-written."""
        if not self.root.exists():  # one that is there may be shared, and its mode is somebody's choice
            private_directory(self.root)
        private_directory(self.folder)
        self._chunks.tidy()

    def name(self, documents: Sequence[str]) -> str:
        """Keyed digest of a group's texts, 64 hex digits."""
        return _key(self.key_path.absolute()).digest("features", self.recipe, *documents)

    def missing(self, names: Sequence[str]) -> list[str]:
        """The groups that are not in the store, in order, each once."""
        unique = list(dict.fromkeys(names))
        chunks = self._chunks
        chunks.scan()
        return [name for name, place in zip(unique, chunks.find(unique), strict=True) if place is None]

    def write(self, groups: Mapping[str, Encoded]) -> None:
        """Store some groups, all of one row length and width, in one file; its line in the journal comes last."""
        if groups:
            self._chunks.write(groups)

    def read(self, names: Sequence[str]) -> list[Encoded]:
        """The groups, in order, memory-mapped; a damaged file is deleted, and the next run computes its groups."""
        chunks = self._chunks
        if None in chunks.find(names):
            chunks.scan()
        places = [place for place in chunks.find(names) if place is not None]
        if len(places) < len(names):
            raise ShardError("cached features of private text are missing: run again with --resume.")
        return chunks.read(places)

    def clear(self) -> None:
        """Delete everything, other formats included; refused where the folder holds something that is no store's."""
        delete_chunks(self.folder)


@lru_cache(maxsize=8)
def _open(folder: Path, key_path: Path) -> Chunks:
    return Chunks(folder, _key(key_path))


@lru_cache(maxsize=8)
def _key(path: Path) -> Key:
    return load_key(path)
