"""Cached trunk states of private text: each group of documents goes through the trunk once per corpus and base.

A group (a user, or a shard) is named by a keyed digest of its texts, so its states serve any number of teachers, and a
changed user costs that user's group. The folder is private: files of mode 0600 in a folder of mode 0700. The store
travels to Ray actors as paths; the key and the list of chunks are read there, once per process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rayprivacy.core.errors import ShardError
from rayprivacy.core.files import private_directory
from rayprivacy.core.keys import Key, load_key
from rayprivacy.models.chunks import Chunks, delete_chunks
from rayprivacy.models.features import Encoded


@dataclass(frozen=True)
class FeatureStore:
    """Cached trunk states of groups of private documents, named by a keyed digest of the documents.

    Attributes:
        root: the folder of all stores; this one lies in a folder of it that the recipe digest names.
        recipe: digest of everything public that decides the states (base, tokens, rows, cut).
        key_path: file of the run's secret.
    """

    root: Path
    recipe: str
    key_path: Path

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
