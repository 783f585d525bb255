"""What trained teachers leave on disk, so that a killed run goes on where it stopped.

A file holds some teachers, and a line of the journal says which, and from what each was trained: the names of its
groups, which are keyed digests of their texts, and the public recipe. So a teacher is finished or not by itself,
however teachers were dealt out when it was trained. Where several lines name a teacher, the one with the largest
version counts: who trains it anew has read the others and writes a larger one. Everything in the folder is private:
mode 0600 in a 0700 directory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save

from rayprivacy.core.errors import ShardError
from rayprivacy.core.files import Journal, private_directory, write_atomic
from rayprivacy.core.private import digest_bytes, digest_file, digest_json

_SUFFIX = ".safetensors"


class _Place(NamedTuple):
    """Where a trained teacher is: a row of a file; the larger of two counts."""

    version: int
    file: str
    row: int
    source: str
    digest: str


@dataclass(frozen=True)
class Workspace:
    """The folder of a teacher ensemble."""

    root: Path  # the folder
    recipe: str  # digest of everything public that decides what teachers are; another value means other teachers

    def prepare(self) -> None:
        """Make the folder, for the owner only, without files that no teacher is read from."""
        private_directory(self.root)
        known = self._known()
        for path in self.root.iterdir():
            scratch = path.name.startswith(".") and _SUFFIX in path.name
            if scratch or (path.suffix == _SUFFIX and path.name not in known.files()):
                path.unlink()

    def _known(self) -> "_Known":
        known = _known(self.root.absolute())
        known.learn()
        return known

    def source(self, groups: Sequence[str]) -> str:
        """Digest of what a teacher is trained from: the names of its groups in order, and the public recipe."""
        return digest_json([self.recipe, *groups])

    def missing(self, sources: Mapping[int, str]) -> list[int]:
        """Those of some teachers that are not on disk, intact and trained from these sources."""
        known = self._known()
        return [teacher for teacher, source in sources.items() if not known.has(teacher, source)]

    def write(self, sources: Mapping[int, str], state: Mapping[str, torch.Tensor]) -> None:
        """Store trained teachers, [G, ...] by name, in the order of their sources; the line comes last."""
        trained = save({name: tensor.contiguous() for name, tensor in state.items()})
        digest = digest_bytes(trained)
        file = f"{digest[:32]}{_SUFFIX}"
        known = self._known()
        write_atomic(self.root / file, trained)
        facts = {"sha256": digest, "version": known.version(sources), "teachers": list(sources.items())}
        known.journal.add(file, facts)

    def read(self, teachers: Sequence[int]) -> dict[str, torch.Tensor]:
        """Trained teachers, [G, ...] by name, in order; a missing or damaged one is refused."""
        known = self._known()
        rows = [known.row(teacher) for teacher in teachers]
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


class _Known:
    """What one process knows of a workspace."""

    def __init__(self, root: Path) -> None:
        self.journal = Journal(root)
        self._root = root
        self._places: dict[int, _Place] = {}
        self._intact: set[tuple[str, int, int]] = set()

    def files(self) -> set[str]:
        """The files that some teacher is read from."""
        return {place.file for place in self._places.values()}

    def learn(self) -> None:
        """Look for teachers that came or went since the last time."""
        void, lines = self.journal.news()
        if void:
            self._places.clear()
        for line in lines:
            for row, (teacher, source) in enumerate(line["teachers"]):
                place = _Place(line["version"], line["file"], row, source, line["sha256"])
                self._places[teacher] = max(place, self._places.get(teacher, place))

    def version(self, teachers: Mapping[int, str]) -> int:
        """A version above those of all that are known of these teachers."""
        return 1 + max((self._places[each].version for each in teachers if each in self._places), default=0)

    def has(self, teacher: int, source: str) -> bool:
        """Whether a teacher was trained from this very source, and its file is intact."""
        place = self._places.get(teacher)
        return place is not None and place.source == source and self._is_intact(place)

    def row(self, teacher: int) -> dict[str, torch.Tensor]:
        """One trained teacher, [1, ...] by name."""
        place = self._places.get(teacher)
        if place is None:
            raise ShardError(f"teacher {teacher} is not on disk: run again with --resume.")
        if not self._is_intact(place):
            raise ShardError(f"the file of teacher {teacher} is damaged: run again with --resume.")
        with safe_open(self._root / place.file, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            return {name: rows[place.row : place.row + 1] for name, rows in slices.items()}

    def _is_intact(self, place: _Place) -> bool:
        path = self._root / place.file
        if not path.exists():
            return False
        stat = path.stat()
        stamp = (place.file, stat.st_ino, stat.st_mtime_ns)
        if stamp not in self._intact and digest_file(path) != place.digest:
            return False
        self._intact.add(stamp)
        return True


@lru_cache(maxsize=4)
def _known(root: Path) -> _Known:
    return _Known(root)
