"""Private rows as units: the texts of one user (or one record), as tokens behind their context.

A document is `start, context, text, end`; the context (a control code, say) carries no loss. A text longer than
`max_tokens` is cut, and then does not end with the end token: the model must not learn that sentences stop there.

A method may read other text of the same row in later steps (a redaction that is lifted by and by). It says how many
*versions* of a row there are, what is read of a row in each, and which one a step reads. All of that is public: the
version depends on the number of the step alone. Which units and which of their rows are read in a step depends neither
on the version nor on what it holds (`sampler`), so one coin of probability q serves all versions.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.parts import read_part
from rayprivacy.dpsgd.batches import Document
from rayprivacy.dpsgd.sampler import Unit, first_version, unit_tag
from rayprivacy.models.backbone import Backbone

Row = Mapping[str, Any]


def own_text(row: Row, version: int) -> str:
    """The text of a row, whatever the version."""
    return str(row["text"])


@dataclass(frozen=True)
class Reading:
    """How rows become documents; picklable, public, and holds nothing private.

    Attributes:
        unit: user, or record.
        labels: columns that, with user and text, tell one record from another.
        context: what stands in front of a row's text and carries no loss; a function of the row.
        max_tokens: tokens of a text at most.
        max_context: tokens of a context at most; None for contexts that are short by themselves.
        text: what the model learns to write, from a row and the number of a version.
        versions: how many versions of a row there are.
        version_of: the version, from 0, that a step reads.
    """

    unit: PrivacyUnit
    labels: tuple[str, ...]
    context: Callable[[Row], str]
    max_tokens: int
    max_context: int | None = field(default=None, kw_only=True)
    text: Callable[[Row, int], str] = own_text
    versions: int = 1
    version_of: Callable[[int], int] = first_version

    def check(self, steps: int) -> None:
        """Require that each step reads a version that there is.

        Raises:
            ReleaseError: a step reads another one.
        """
        for step in range(steps):
            version = self.version_of(step)
            if not 0 <= version < self.versions:
                raise ReleaseError(f"step {step} reads version {version} of {self.versions} (from 0): correct it.")


def read_units(shards: Path, parts: Iterable[int], backbone: Backbone, key: Key, reading: Reading) -> list[Unit]:
    """The units of some part files, each with its keyed tag and its documents in every version."""
    units = []
    for part in parts:
        rows = read_part(shards, part).to_pylist()
        first, *later = [documents_of(rows, backbone, reading, version) for version in range(reading.versions)]
        for tag, own in _grouped(rows, key, reading):
            units.append(Unit(tag, tuple(first[own]), tuple(tuple(version[own]) for version in later)))
    return units


def _grouped(rows: list[dict[str, Any]], key: Key, reading: Reading) -> Iterator[tuple[bytes, slice]]:
    """Tag and place of each unit among rows that are sorted by user."""
    if reading.unit is PrivacyUnit.RECORD:
        for at, row in enumerate(rows):
            yield _record_tag(key, row, reading.labels), slice(at, at + 1)
        return
    begin = 0
    for user, own in groupby(rows, key=lambda row: str(row["user"])):
        end = begin + len(list(own))
        yield unit_tag(key, "user", user), slice(begin, end)
        begin = end


def _record_tag(key: Key, row: Row, labels: tuple[str, ...]) -> bytes:
    # A label may be null, which is not the empty string.
    return unit_tag(key, "record", row["user"], row["text"], *(repr(row[name]) for name in labels))


def documents_of(rows: list[dict[str, Any]], backbone: Backbone, reading: Reading, version: int = 0) -> list[Document]:
    """One document for each row, in their order, as it is read in a version."""
    contexts = [reading.context(row) for row in rows]
    codes = {context: backbone.prefix(context, reading.max_context) for context in set(contexts)}
    texts = [reading.text(row, version) for row in rows]
    tokens = backbone.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"] if texts else []
    return [
        _document(codes[context], ids, reading.max_tokens, backbone.end)
        for context, ids in zip(contexts, tokens, strict=True)
    ]


def _document(code: list[int], text: list[int], most: int, end: int) -> Document:
    closing = [end] if len(text) <= most else []
    return Document(np.array([*code, *text[:most], *closing], dtype=np.int32), len(code))
