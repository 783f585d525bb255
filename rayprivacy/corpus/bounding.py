"""At most n records of each user, chosen by an order that no other user can influence.

A user's records are ordered by PRF(secret, "record", user, text): a fixed, secret, random-looking order. It depends on
nothing but the record, so inserting another user, another block or another order of rows moves nobody. The first n of
a union are the first n of the parts' first n, so each block is bounded before the shuffle and the whole after it.
"""

import numpy as np
import pyarrow as pa

from rayprivacy.core.keys import Key
from rayprivacy.corpus.counts import Dropped

_ORDER = "__order"


def bound(table: pa.Table, key: Key, most: int) -> tuple[pa.Table, Dropped]:
    """Drop duplicate rows, then keep each user's first `most` records.

    Returns:
        The rows sorted by user and order, with their rank within the user in the column `record`; and the counts.
    """
    distinct = table.group_by(table.column_names, use_threads=False).aggregate([])
    ranked = _ranked(_sorted(distinct, key))
    kept = ranked.filter(pa.array(ranked["record"].to_numpy() < most))
    return kept, Dropped(duplicates=len(table) - len(distinct), over_bound=len(distinct) - len(kept))


def _sorted(table: pa.Table, key: Key) -> pa.Table:
    # The first 64 bits decide; the text and the labels break ties, so that the order is total on distinct rows.
    pairs = zip(table["user"].to_pylist(), table["text"].to_pylist(), strict=True)
    order = np.array([key.integer("record", user, text) >> 192 for user, text in pairs], dtype=np.uint64)
    columns = ["user", _ORDER, *(name for name in table.column_names if name != "user")]
    ordered = table.append_column(_ORDER, pa.array(order))
    return ordered.sort_by([(name, "ascending") for name in columns]).drop_columns([_ORDER])


def _ranked(table: pa.Table) -> pa.Table:
    users = table["user"].combine_chunks().dictionary_encode()
    codes = (users.combine_chunks() if isinstance(users, pa.ChunkedArray) else users).indices.to_numpy()
    rows = np.arange(len(codes))
    first = np.flatnonzero(np.diff(codes, prepend=-1))
    rank = rows - np.repeat(first, np.diff(first, append=len(codes)))
    return table.append_column("record", pa.array(rank.astype(np.int32)))
