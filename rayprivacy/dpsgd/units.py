"""Private rows as units: the texts of one user (or one record), as tokens behind their context.

A document is `start, context, text, end`; the context (a control code, say) carries no loss. A text longer than
`max_tokens` is cut, and then does not end with the end token: the model must not learn that sentences stop there.

A method may read other text of the same row in later steps (a redaction that is lifted by and by). It says how many
*versions* of a row there are, what is read of a row in each, and which one a step reads. All of that is public: the
version depends on the number of the step alone. Which units and which of their rows are read in a step depends neither
on the version nor on what it holds (`sampler`), so one coin of probability q serves all versions.

Some versions may be redacted copies. Steps that are not charged for full text read these and nothing else
(`release.step_mechanism`): the reading is compared with the steps that are charged before the first one, and each
document says which it is.

Units are tokenised once, when training starts, and lie on disk (`UnitFile`): memory holds 24 bytes of each, their tags
and where each begins. A step samples a small share of all units, so reading these alone costs little.
"""

import os
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.files import private_directory
from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.manifest import part_tables
from rayprivacy.dpsgd.batches import Document
from rayprivacy.dpsgd.sampler import TAG_BYTES, TaggedUnits, Unit, first_version, unit_tag
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.spelling import ids_of

Row = Mapping[str, Any]
_AT_ONCE = 4096  # units that are tokenised together; what a unit becomes does not depend on it
_BUFFER = 1 << 20  # bytes that are written at a time


def _own_text(row: Row, version: int) -> str:
    return str(row["text"])


def no_context(row: Row) -> str:
    """What stands in front of a text where nothing does."""
    return ""


@dataclass(frozen=True)
class Reading:
    """How rows become documents; picklable, public, and holds nothing private."""

    unit: PrivacyUnit  # user, or record
    labels: tuple[str, ...]  # columns that, with user and text, tell one record from another
    context: Callable[[Row], str]  # what stands in front of a row's text and carries no loss; a function of the row
    max_tokens: int  # tokens of a text at most
    # tokens of a context at most; None for contexts that are short by themselves
    max_context: int | None = field(default=None, kw_only=True)
    # what the model learns to write, from a row and the number of a version
    text: Callable[[Row, int], str] = _own_text
    versions: int = 1  # how many versions of a row there are
    version_of: Callable[[int], int] = first_version  # the version, from 0, that a step reads
    redacted: frozenset[int] = frozenset()  # the versions that are redacted copies by a public policy
    whole: str = ""  # what stands in texts, a mark say, and is not cut in two; nothing when it is empty
    # makes the documents of some rows in a version, each from its row alone, where they are not text behind a context;
    # `context` and `text` are then not looked at
    documents: Callable[[Sequence[Row], Backbone, int], list[Document]] | None = None

    def check(self, steps: int, free: frozenset[int] = frozenset()) -> None:
        """Require that each step reads a version that there is, and a redacted one exactly in the steps `free`."""
        for step in range(steps):
            version = self.version_of(step)
            if not 0 <= version < self.versions:
                raise ReleaseError(f"step {step} reads version {version} of {self.versions} (from 0): correct it.")
            if (version in self.redacted) is not (step in free):
                free_step, charged = "is a redacted one and would read full text", "is charged and reads redacted text"
                what = free_step if step in free else charged
                raise ReleaseError(f"step {step} {what}: let documents follow the schedule that is charged.")


class Share(NamedTuple):
    """What a rank reads of a part: all units, or those of one of several slices, from 0."""

    part: int
    slice: int = 0
    slices: int = 1

    def holds(self, tag: bytes) -> bool:
        """Whether a unit is in this slice, by its own tag alone."""
        return int.from_bytes(tag[:8], "big") % self.slices == self.slice


def shares_of_rank(parts: int, number: int, world: int) -> list[Share]:
    """What one rank reads: every world-th part, or slices of parts where there are more ranks than parts.

    >>> shares_of_rank(3, 1, 2)
    [Share(part=1, slice=0, slices=1)]
    >>> [len(shares_of_rank(2, number, 3)) for number in range(3)]
    [2, 1, 1]
    """
    slices = -(-world // parts)
    return [Share(part, cut, slices) for cut in range(slices) for part in range(parts)][number::world]


def read_units(shards: Path, parts: Iterable[int], backbone: Backbone, key: Key, reading: Reading) -> list[Unit]:
    """The units of some parts, as `each_unit` reads them."""
    return list(each_unit(shards, map(Share, parts), backbone, key, reading))


def each_unit(shards: Path, shares: Iterable[Share], backbone: Backbone, key: Key, reading: Reading) -> Iterator[Unit]:
    """Units of some parts, tagged by the key, in every version; one file of the corpus at a time is in memory."""
    for share in shares:
        for table in part_tables(shards, share.part):
            grouped = (each for each in _grouped(table, key, reading) if share.holds(each[0]))
            while some := list(islice(grouped, _AT_ONCE)):
                yield from _units(some, share.part, backbone, reading)


def _units(grouped: list[tuple[bytes, list[Row]]], part: int, backbone: Backbone, reading: Reading) -> Iterator[Unit]:
    rows = [row for _, own in grouped for row in own]
    first, *later = [documents_of(rows, backbone, reading, version) for version in range(reading.versions)]
    begin = 0
    for tag, mine in grouped:
        own = slice(begin, begin + len(mine))
        yield Unit(tag, tuple(first[own]), tuple(tuple(version[own]) for version in later), part)
        begin = own.stop


def _grouped(table: pa.Table, key: Key, reading: Reading) -> Iterator[tuple[bytes, list[Row]]]:
    rows: Iterator[Row] = (row for batch in table.to_batches(_AT_ONCE) for row in batch.to_pylist())
    if reading.unit is PrivacyUnit.RECORD:
        for row in rows:  # a label may be null, which is not the empty string
            labels = (repr(row[name]) for name in reading.labels)
            yield unit_tag(key, "record", row["user"], row["text"], *labels), [row]
        return
    for user, own in groupby(rows, key=lambda row: str(row["user"])):
        yield unit_tag(key, "user", user), list(own)


def documents_of(rows: Sequence[Row], backbone: Backbone, reading: Reading, version: int = 0) -> list[Document]:
    """One document for each row, in their order, as it is read in a version."""
    if reading.documents is not None:
        return reading.documents(rows, backbone, version)
    contexts = [reading.context(row) for row in rows]
    codes = {context: backbone.prefix(context, reading.max_context) for context in set(contexts)}
    texts = [reading.text(row, version) for row in rows]
    tokens = ids_of(backbone.tokenizer, texts)
    most, documents = reading.max_tokens, []
    for code, text in zip(map(codes.__getitem__, contexts), tokens, strict=True):
        begin = _beginning(text, most, reading.whole, backbone.tokenizer) if len(text) > most else [*text, backbone.end]
        ids = [*code, *begin]
        documents.append(Document(np.array(ids, dtype=np.int32), len(code), version in reading.redacted))
    return documents


def _beginning(ids: list[int], most: int, whole: str, tokenizer: Any) -> list[int]:
    """The first tokens of a longer text, at most so many, and no part of what stays whole unless all are of it."""
    read = tokenizer.decode(ids[: most + len(whole)]) if whole else ""
    end = len(tokenizer.decode(ids[:most])) if whole in read else 0
    begins = read.rfind(whole, 0, end + len(whole) - 1)
    if not 0 < begins < end < begins + len(whole):
        return ids[:most]
    return ids[: next(kept for kept in range(most, -1, -1) if len(tokenizer.decode(ids[:kept])) <= begins)]


class UnitFile(TaggedUnits):
    """Units that are read from disk one by one, as they are asked for; safe to read from several threads.

    The file has no name: it is unlinked as soon as it is open, so that it goes when the process does, however that
    ends. It lies in the private folder of the run, and is readable by its owner alone. All units have the same number
    of versions.

        a unit:  documents, versions, part | (tokens, first_target, redacted) of each document of each version | tokens
    """

    def __init__(self, folder: Path, units: Iterable[Unit]) -> None:
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
