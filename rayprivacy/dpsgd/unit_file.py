"""The units of a rank on disk: memory holds their tags and where each of them begins, and nothing of their text.

A step samples a small share of all units, so reading these alone costs little, and how many users a worker has is no
matter of its memory: 24 bytes for each. Units are tokenised once, when training starts. The file has no name: it is
unlinked as soon as it is open, so that it goes when the process does, however that ends. It lies in the private folder
of the run, and is readable by its owner alone.

    a unit:  documents, versions, part | (tokens, first_target, redacted) of each document of each version | tokens
"""

import os
import tempfile
from array import array
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import overload

import numpy as np
import numpy.typing as npt

from rayprivacy.core.files import private_directory
from rayprivacy.dpsgd.batches import Document
from rayprivacy.dpsgd.sampler import TAG_BYTES, TaggedUnits, Unit

_BUFFER = 1 << 20


class UnitFile(TaggedUnits):
    """Units that are read from disk one by one, as they are asked for; safe to read from several threads."""

    def __init__(self, folder: Path, units: Iterable[Unit]) -> None:
        """Write the units, all with the same number of versions, to an unnamed file in a folder for its owner."""
        # Buffered writes go through the object, reads through its descriptor.
        self._file = tempfile.TemporaryFile(dir=private_directory(folder), buffering=_BUFFER)  # noqa: SIM115
        tags, self._starts = bytearray(), array("q", [0])
        for unit in units:
            tags += unit.tag
            self._starts.append(self._starts[-1] + self._file.write(_packed(unit)))
        self._file.flush()
        self._tags = bytes(tags)

    @property
    def tags(self) -> bytes:
        """The tags of all units, one behind the other."""
        return self._tags

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> Unit: ...

    @overload
    def __getitem__(self, index: slice) -> list[Unit]: ...

    def __getitem__(self, index: int | slice) -> Unit | list[Unit]:
        if isinstance(index, slice):
            return [self._read(at) for at in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} units")
        return self._read(index % len(self))

    def _read(self, at: int) -> Unit:
        start, end = self._starts[at], self._starts[at + 1]
        words = np.frombuffer(os.pread(self._file.fileno(), end - start, start), np.int32)
        return _unpacked(self._tags[at * TAG_BYTES : (at + 1) * TAG_BYTES], words)


def _packed(unit: Unit) -> bytes:
    documents = list(chain(unit.documents, *unit.later))
    shape = [(len(document.ids), document.first_target, document.redacted) for document in documents]
    head = np.array([len(unit.documents), 1 + len(unit.later), unit.part, *chain.from_iterable(shape)], np.int32)
    return np.concatenate([head, *(document.ids for document in documents)]).astype(np.int32).tobytes()


def _unpacked(tag: bytes, words: npt.NDArray[np.int32]) -> Unit:
    count, versions, part = words[:3].tolist()
    shape = words[3 : 3 + 3 * count * versions].reshape(-1, 3)
    ends = np.cumsum(shape[:, 0])
    tokens = np.split(words[3 + shape.size :], ends[:-1])
    documents = [
        Document(ids, first, bool(redacted)) for ids, (_, first, redacted) in zip(tokens, shape.tolist(), strict=True)
    ]
    own, *later = (tuple(documents[start : start + count]) for start in range(0, len(documents), count))
    return Unit(tag, own, tuple(later), part)
