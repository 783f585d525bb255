"""Canonical users, clean texts and the bound on what one user contributes: pure functions on Arrow tables.

One person must have one name, or the bound on contributions and the shard assignment protect only half of them. So
users are named as `core.names` says, in every format, and so are labels, and conversations. A number of 2^53 or more
that is a float, or has a fraction or an exponent, has lost digits: its user cannot be told, so it is no id, and its
records are left out and counted, as those without an id are. Floats of 32 and 16 bits lose them from 2^24 and 2^11 on.

At most n records of each user are kept, chosen by an order that no other user can influence: that of
SipHash(secret, user) xor SipHash(secret, text), which is fixed, secret and random-looking (Aumasson and Bernstein,
2012: a keyed function of 64 bits, at the speed of a checksum). It depends on nothing but the record, so inserting
another user, another block or another order of rows moves no record. The first n of a union are the first n of the
parts' first n, so a block may be bounded before the shuffle, and the whole is after it.

Rows that come with their *place* in the source (see `layout`) are ordered by user and place in the same way, and told
from each other by it alone: what they say decides neither which of them are kept nor their order.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rayprivacy.core.errors import CorpusError
from rayprivacy.core.keys import Key
from rayprivacy.core.names import has_lost_digits, name_of, of_float

ORDER = "__order"  # a record's place among those of its user
_SIP_KEY = 16
PLACE = "__place"  # of a row in the source: its file and its number in it
_PLACES = frozenset({"user", ORDER, "shard", "part", "record"})  # what follows from the rest of a row


@dataclass(frozen=True)
class Dropped:
    """Private counts of records set aside; their sum over blocks is exact, and how it splits depends on the blocks."""

    null_user: int = 0
    empty_text: int = 0  # set aside, or counted alone where rows have places
    duplicates: int = 0  # of the same user, with the same text and labels; none where rows have places
    over_bound: int = 0  # beyond `max_records_per_user`
    cut_text: int = 0  # kept, but cut to `max_chars`

    def __add__(self, other: Self) -> "Dropped":
        return Dropped(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


def ordered(table: pa.Table, key: Key) -> pa.Table:
    """Add the column `__order`, uint64: each record's place among those of its user."""
    label, name = ("record-place", PLACE) if PLACE in table.column_names else ("record", "text")
    secret, users = key.digest(label)[:_SIP_KEY], _encoded(table["user"])
    own = _sip(users.dictionary, secret)[users.indices.to_numpy()] if len(table) else np.zeros(0, np.uint64)
    return table.append_column(ORDER, pa.array(own ^ _sip(table[name], secret)))


def _sip(column: pa.Array | pa.ChunkedArray, secret: str) -> npt.NDArray[np.uint64]:
    """SipHash-2-4 of strings under a key of 16 hexadecimal digits."""
    from pandas.util import hash_array  # half a second that a plan need not wait for

    return np.asarray(hash_array(np.asarray(column.to_pylist(), object), hash_key=secret, categorize=False))


def bounded(table: pa.Table, most: int | None) -> tuple[pa.Table, Dropped]:
    """Drop duplicates, then keep each user's first `most` rows, or all without `most`, sorted by user and order."""
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
    """Order rows of one user and order, neighbours in `index`, by place, else text; say which repeat the former."""
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


def whole(table: pa.Table) -> tuple[pa.Table, Dropped]:
    """Canonicalise user and labels; texts stay as they are and only rows without user go. For rows by place (`layout`):
    what is white space and what a word is decided once, where words are counted. A missing text has no words.
    """
    users, texts = canonical_users(table["user"]), _strings(table["text"])
    has_user, missing = pc.is_valid(users), pc.is_null(texts)
    dropped = Dropped(null_user=_count(pc.invert(has_user)), empty_text=_count(pc.and_(has_user, missing)))
    rows = pa.table({"user": users, "text": pc.fill_null(texts, ""), **_labels(table)})
    return rows.filter(has_user), dropped


def clean(table: pa.Table, max_chars: int | None) -> tuple[pa.Table, Dropped]:
    """Canonicalise a table of user, text and labels, cut at `max_chars` if any; rows without one are dropped."""
    users, texts = canonical_users(table["user"]), stripped_texts(table["text"])
    cut = texts if max_chars is None else pc.utf8_rtrim_whitespace(pc.utf8_slice_codeunits(texts, 0, max_chars))
    has_user, has_text = pc.is_valid(users), pc.is_valid(texts)
    keep = pc.and_(has_user, has_text)
    longest = pa.scalar(max_chars, pa.int64())
    too_long = pc.and_(keep, pc.fill_null(pc.greater(pc.utf8_length(texts), longest), False))
    dropped = Dropped(
        null_user=_count(pc.invert(has_user)),
        empty_text=_count(pc.and_(has_user, pc.invert(has_text))),
        cut_text=_count(too_long),
    )
    return pa.table({"user": users, "text": cut, **_labels(table)}).filter(keep), dropped


def _labels(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    names = [name for name in table.column_names if name not in ("user", "text")]
    return {name: table[name] if name == PLACE else canonical_labels(table[name], name) for name in names}


_NARROW = {pa.float16(): 2**11, pa.float32(): 2**24}  # such a float holds every integer below


def canonical_users(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Users by their one name; without one, or where its digits are lost, null."""
    column = _decoded(column)
    if column.type in _NARROW:
        wide = column.cast(pa.float64())
        column = pc.if_else(pc.less(pc.abs(wide), _NARROW[column.type]), wide, pa.scalar(None, pa.float64()))
    return _on_distinct(_strings_of(column, "user"), lambda name: None if has_lost_digits(name) else name_of(name))


def canonical_labels(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Labels by their one name; null where there is none."""
    return _on_distinct(_strings_of(column, name), name_of)


def stripped_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts as large strings without surrounding white space; empty ones are null."""
    trimmed = pc.utf8_trim_whitespace(_strings(column))
    return pc.if_else(pc.equal(trimmed, ""), pa.scalar(None, pa.large_string()), trimmed)


def _strings(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if kind not in (pa.string(), pa.large_string(), pa.string_view(), pa.null()):
        raise CorpusError(f"corpus.text names a column of type {kind}: choose a column of strings.")
    return column.cast(pa.large_string())


def _strings_of(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Any scalar column as strings; a float that is an integer is written as one, NaN is null."""
    column = _decoded(column)
    if column.type in _NARROW:  # the double that is written as it is
        column = column.cast(pa.string()).cast(pa.float64())
    if pa.types.is_floating(column.type):
        return _on_distinct(column, of_float)
    try:
        return column.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        kind = column.type
    raise CorpusError(f"the column '{name}' of the corpus has type {kind}: convert it to strings in the source.")


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _on_distinct(column: pa.ChunkedArray, function: Callable[[Any], str | None]) -> pa.ChunkedArray:
    # A user has many rows: the slow Python function runs once for each distinct value.
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    names = pa.array([function(value) for value in encoded.dictionary.to_pylist()], pa.string())
    return pa.chunked_array([names.take(encoded.indices)])


def _count(mask: pa.ChunkedArray) -> int:
    return pc.sum(mask).as_py() or 0
