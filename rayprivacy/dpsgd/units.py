"""Private rows as units: all records of one user (or one record), as tokens behind their control code.

A document is `start, code, text, end`; the code is context and carries no loss. A text longer than `max_tokens` is cut,
and then does not end with the end token: the model must not learn that sentences stop there.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.parts import read_part
from rayprivacy.dpsgd.batches import Document
from rayprivacy.dpsgd.sampler import Unit, unit_tag
from rayprivacy.models.backbone import Backbone

Prefix = Callable[[Mapping[str, str | None]], str]


@dataclass(frozen=True)
class Reading:
    """How rows become documents; holds nothing private.

    Attributes:
        unit: user, or record.
        labels: columns that the control code is made of.
        prefix: the text of the control code, from a record's labels.
        max_tokens: tokens of a text at most.
    """

    unit: PrivacyUnit
    labels: tuple[str, ...]
    prefix: Prefix
    max_tokens: int


def read_units(shards: Path, parts: Iterable[int], backbone: Backbone, key: Key, reading: Reading) -> list[Unit]:
    """The units of some part files, each with its keyed tag and its documents."""
    units = []
    for part in parts:
        rows = read_part(shards, part).to_pylist()
        documents = documents_of(rows, backbone, reading)
        pairs = list(zip(rows, documents, strict=True))
        if reading.unit is PrivacyUnit.RECORD:
            units += [Unit(_record_tag(key, row, reading.labels), (document,)) for row, document in pairs]
            continue
        for user, own in groupby(pairs, key=lambda pair: str(pair[0]["user"])):
            units.append(Unit(unit_tag(key, "user", user), tuple(document for _, document in own)))
    return units


def _record_tag(key: Key, row: Mapping[str, Any], labels: tuple[str, ...]) -> bytes:
    # A label may be null, which is not the empty string.
    return unit_tag(key, "record", row["user"], row["text"], *(repr(row[name]) for name in labels))


def documents_of(rows: list[dict[str, Any]], backbone: Backbone, reading: Reading) -> list[Document]:
    """One document for each row with the columns text and labels, in their order."""
    prefixes = [reading.prefix({name: row[name] for name in reading.labels}) for row in rows]
    codes = {prefix: backbone.prefix(prefix) for prefix in set(prefixes)}
    texts = list(map(itemgetter("text"), rows))
    tokens = backbone.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"] if texts else []
    return [
        _document(codes[prefix], ids, reading.max_tokens, backbone.end)
        for prefix, ids in zip(prefixes, tokens, strict=True)
    ]


def _document(code: list[int], text: list[int], most: int, end: int) -> Document:
    closing = [end] if len(text) <= most else []
    return Document(np.array([*code, *text[:most], *closing], dtype=np.int32), len(code))
