"""The bound on contributions: at most n records of each user, chosen by an order that no other user can influence.

A user's records are ordered by PRF(secret, "record", user, text): a fixed, secret, random-looking order. It depends on
nothing but the record, so inserting another user, another block or another order of rows moves no record. The first n
of a union are the first n of the parts' first n, so each block is bounded before the shuffle and the whole after it.

Rows that come with their *place* in the source (see `layout`) are ordered by PRF(secret, "record-place", user, place),
and told from each other by it alone: what they say decides neither which of them are kept nor their order.

`Dropped` counts the records that are set aside on the way into the shards, here and elsewhere. The counts are private,
like the corpus.
"""

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rayprivacy.core.keys import Key
from rayprivacy.corpus.framing import framed

ORDER = "__order"  # the first 64 bits of a record's place among those of its user
PLACE = "__place"  # of a row in the source: its file and its number in it
_PLACES = frozenset({"user", ORDER, "shard", "part", "record"})  # what follows from the rest of a row


@dataclass(frozen=True)
class Dropped:
    """Counts that add up over blocks.

    Duplicates and records over the bound are dropped within blocks first and across blocks later; a record that is both
    counts as whichever was noticed first. So their sum is exact, and how it splits depends on the blocks.

    Attributes:
        null_user: records without a user.
        empty_text: records without text; set aside, or counted alone where rows have places.
        duplicates: records repeated by the same user, with the same text and labels; none where rows have places.
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

    The rows come sorted by user and order, with their rank within the user in the column `record`.
    """
    kept, dropped = bounded(ordered(table, key), most)
    return ranked(kept.drop_columns([ORDER]), "user"), dropped


def ordered(table: pa.Table, key: Key) -> pa.Table:
    """Add the column `__order`, uint64: each record's place among those of its user."""
    label, name = ("record-place", PLACE) if PLACE in table.column_names else ("record", "text")
    inputs = framed([table["user"], table[name]])
    first = b"".join(digest[:8] for digest in key.digests(label, inputs.rows()))
    return table.append_column(ORDER, pa.array(np.frombuffer(first, ">u8").astype(np.uint64)))


def bounded(table: pa.Table, most: int | None) -> tuple[pa.Table, Dropped]:
    """Bound rows that have their order; returns them sorted by user and order, and the counts."""
    users, order = ranks(table["user"]), table[ORDER].to_numpy()
    index = np.lexsort((order, users))
    repeated = _settle(table, index, users, order)
    distinct = index[~repeated]
    place = places(np.flatnonzero(np.diff(users[distinct], prepend=-1)), len(distinct))
    kept = distinct if most is None else distinct[place < most]
    counts = Dropped(duplicates=len(index) - len(distinct), over_bound=len(distinct) - len(kept))
    return table.take(pa.array(kept)), counts


def _settle(
    table: pa.Table, index: npt.NDArray[np.int64], users: npt.NDArray[np.int64], order: npt.NDArray[np.uint64]
) -> npt.NDArray[np.bool_]:
    """Put rows of one user and one order, neighbours in `index`, in the order of their places, else of what they say.

    Says which places of `index` repeat the row before them.
    """
    repeated = np.zeros(len(index), dtype=bool)
    same = (np.diff(users[index]) == 0) & (np.diff(order[index]) == 0)
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))  # few: the text is the same, as a rule
    if not len(tied):
        return repeated
    names = [PLACE] if PLACE in table.column_names else [name for name in table.column_names if name not in _PLACES]
    rows = table.take(pa.array(index[tied]))
    rows = pa.table({"user": users[index[tied]], ORDER: rows[ORDER], **{name: rows[name] for name in names}})
    settled = pc.sort_indices(rows, [(name, "ascending") for name in rows.column_names]).to_numpy()
    index[tied] = index[tied][settled]
    rows = rows.take(pa.array(settled))
    columns = [_codes(rows[name]) for name in rows.column_names]
    equal = np.logical_and.reduce([np.diff(column, prepend=-1) == 0 for column in columns])
    equal[0] = False
    repeated[tied] = equal
    return repeated


def ranked(table: pa.Table, *names: str) -> pa.Table:
    """Add the column `record`: the place of each row among its neighbours that agree with it in the named columns."""
    changes = np.zeros(len(table), dtype=bool)
    for name in names:
        changes |= np.diff(_codes(table[name]), prepend=-1) != 0
    rank = places(np.flatnonzero(changes), len(table))
    return table.append_column("record", pa.array(rank.astype(np.int32)))


def places(starts: npt.NDArray[np.int64], rows: int) -> npt.NDArray[np.int64]:
    """The place of each row in its run, from 0, where runs begin at these rows."""
    return np.arange(rows) - np.repeat(starts, np.diff(starts, append=rows))


def ranks(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Numbers of strings without nulls that compare as the strings do, int64 [rows]."""
    encoded = _encoded(column)
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return np.asarray(rank[encoded.indices.to_numpy()])


def _codes(column: pa.ChunkedArray) -> Any:
    return _encoded(column).indices.to_numpy()


def _encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    encoded = column.combine_chunks().dictionary_encode("encode")
    return encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
