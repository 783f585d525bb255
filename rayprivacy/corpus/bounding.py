"""The bound on contributions: at most n records of each user, chosen by an order that no other user can influence.

A user's records are ordered by PRF(secret, "record", user, text): a fixed, secret, random-looking order. It depends on
nothing but the record, so inserting another user, another block or another order of rows moves no record. The first n
of a union are the first n of the parts' first n, so each block is bounded before the shuffle and the whole after it.

`Dropped` counts the records that are set aside on the way into the shards, here and elsewhere. The counts are private,
like the corpus.
"""

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import pyarrow as pa

from rayprivacy.core.keys import Key

_ORDER = "__order"


@dataclass(frozen=True)
class Dropped:
    """Counts that add up over blocks.

    Duplicates and records over the bound are dropped within blocks first and across blocks later; a record that is both
    counts as whichever was noticed first. So their sum is exact, and how it splits depends on the blocks.

    Attributes:
        null_user: records without a user.
        empty_text: records without text.
        duplicates: records repeated by the same user, with the same text and labels.
        over_bound: records beyond `max_records_per_user`.
        cut_text: records kept, but cut to `max_chars`.
    """

    null_user: int = 0
    empty_text: int = 0
    duplicates: int = 0
    over_bound: int = 0
    cut_text: int = 0

    def __add__(self, other: Self) -> "Dropped":
        return Dropped(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


def bound(table: pa.Table, key: Key, most: int | None) -> tuple[pa.Table, Dropped]:
    """Drop duplicate rows, then keep each user's first `most` records, or all of them without `most`.

    Returns:
        The rows sorted by user and order, with their rank within the user in the column `record`; and the counts.
    """
    distinct = table.group_by(table.column_names, use_threads=False).aggregate([])
    kept = ranked(_sorted(distinct, key), "user")
    if most is not None:
        kept = kept.filter(pa.array(kept["record"].to_numpy() < most))
    return kept, Dropped(duplicates=len(table) - len(distinct), over_bound=len(distinct) - len(kept))


def _sorted(table: pa.Table, key: Key) -> pa.Table:
    # The first 64 bits decide; the text and the labels break ties, so that the order is total on distinct rows.
    pairs = zip(table["user"].to_pylist(), table["text"].to_pylist(), strict=True)
    order = np.array([key.integer("record", user, text) >> 192 for user, text in pairs], dtype=np.uint64)
    columns = ["user", _ORDER, *(name for name in table.column_names if name != "user")]
    ordered = table.append_column(_ORDER, pa.array(order))
    return ordered.sort_by([(name, "ascending") for name in columns]).drop_columns([_ORDER])


def ranked(table: pa.Table, *names: str) -> pa.Table:
    """Add the column `record`: the place of each row among its neighbours that agree with it in the named columns."""
    changes = np.zeros(len(table), dtype=bool)
    for name in names:
        changes |= np.diff(_codes(table[name]), prepend=-1) != 0
    first = np.flatnonzero(changes)
    rank = np.arange(len(table)) - np.repeat(first, np.diff(first, append=len(table)))
    return table.append_column("record", pa.array(rank.astype(np.int32)))


def _codes(column: pa.ChunkedArray) -> Any:
    encoded = column.combine_chunks().dictionary_encode()
    return (encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded).indices.to_numpy()
