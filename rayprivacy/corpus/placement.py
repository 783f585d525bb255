"""Where a record goes when the unit is a record: its shard is PRF(secret, "record-shard", record) mod M.

A *record* is one distinct (user, text, labels) row after cleaning: what a user repeats word for word, or beyond
`max_chars`, is one record; the same text of another user, or with other labels, is another one. One row of the source
more or less is therefore one record more or less, or none.

Its shard depends on the record and the secret alone: one record sits in one shard, and no other record moves. Three
things could break this, and are arranged so that they cannot:

- A bound per user: a new record would push an old one out, perhaps of another shard. So there is none (`check_unit`).
- The rank of a record within its user, which decides the order of rows: it is counted within shard and user.
- The hold-out: it goes by the user's coin, as for unit 'user'. The user id is part of the record, so the coin is a
  function of this record alone, and no writer is both trained on and measured on.
"""

from collections.abc import Iterator

import pyarrow as pa

from rayprivacy.core.keys import Key

_PLACES = ("shard", "part", "record")


def record_shards(table: pa.Table, key: Key, shards: int) -> list[int]:
    """The shard of each row, by its user, text and labels alone."""
    return [key.integer("record-shard", *record) % shards for record in _records(table)]


def records_digest(table: pa.Table, key: Key) -> int:
    """The sum of the records' keyed digests."""
    return sum(key.integer("content-record", *record) for record in _records(table))


def marked(value: str | None) -> str:
    """A label for the PRF: a null and an empty one are different contents."""
    return "" if value is None else f"={value}"


def _records(table: pa.Table) -> Iterator[tuple[str, ...]]:
    labels = [name for name in table.column_names if name not in ("user", "text", *_PLACES)]
    return zip(
        *([marked(value) for value in table[name].to_pylist()] for name in ("user", "text", *labels)), strict=True
    )
