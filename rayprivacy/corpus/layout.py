"""The layout: which user or record goes to which shard, part or hold-out, and the content digest. Pure functions.

A user's shard is PRF(secret, "shard", user) mod M: it depends on the user id and the secret alone, so one user sits in
one shard, and adding a user moves no other. Each user is held out by a coin of their own, likewise. Shards are grouped
into parts, the files on disk; `per_part` is a matter of performance and changes no shard. With privacy.unit 'phrase'
texts are masked first (`masking`) and users are placed in the same way: a text that changes moves nothing.

With privacy.unit 'record' each record has its own shard, PRF(secret, "record-shard", record) mod M. A *record* is one
distinct (user, text, labels) row after cleaning: what a user repeats word for word, or beyond `max_chars`, is one
record; the same text of another user, or with other labels, is another one. One row of the source more or less is
therefore one record more or less, or none. A record's shard depends on the record and the secret alone: one record sits
in one shard, and no other record moves. Three things could break this, and are arranged so that they cannot:

- A bound per user: a new record would push an old one out, perhaps of another shard. So there is none (`check_unit`).
- The rank of a record within its user, which decides the order of rows: it is counted within shard and user.
- The hold-out: it goes by the user's coin, as for unit 'user'. The user id is part of the record, so the coin is a
  function of this record alone, and no writer is both trained on and measured on.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa

from rayprivacy.core.errors import ConfigError, ShardError
from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.bounding import Dropped, bound, ranked
from rayprivacy.corpus.settings import CorpusConfig, check_unit

HOLDOUT = -1
_MODULUS = 1 << 256
_PLACES = ("shard", "part", "record")


@dataclass(frozen=True)
class Layout:
    """The corpus settings, the number of shards M, how many shards share a file, and whose shard is one.

    Raises:
        ConfigError: a number is not positive, or the settings break the rule of the unit.
    """

    config: CorpusConfig
    shards: int
    per_part: int
    unit: PrivacyUnit = PrivacyUnit.USER

    def __post_init__(self) -> None:
        for name, value in (("shards", self.shards), ("per_part", self.per_part)):
            if value < 1:
                raise ConfigError(f"{name} is {value}: give a whole number of at least 1.")
        check_unit(self.config, self.unit, self.shards)

    @property
    def parts(self) -> int:
        """The number of part files."""
        return -(-self.shards // self.per_part)

    @property
    def schema(self) -> pa.Schema:
        """The columns of every part file and of the hold-out file."""
        own = [("shard", pa.int32()), ("user", pa.string()), ("record", pa.int32()), ("text", pa.large_string())]
        return pa.schema([*own, *((name, pa.string()) for name in self.config.labels)])

    @property
    def shuffle_schema(self) -> pa.Schema:
        """The columns of prepared rows, on their way to their part."""
        own = [("user", pa.string()), ("text", pa.large_string())]
        return pa.schema([*own, *((name, pa.string()) for name in self.config.labels), ("part", pa.int32())])

    def shard_of(self, key: Key, user: str) -> int:
        """The user's shard, or `HOLDOUT`; with unit 'record' only whether the user is held out."""
        if held_out(key, user, self.config.holdout):
            return HOLDOUT
        return key.integer("shard", user) % self.shards

    def part_of(self, shard: int) -> int:
        """The part that holds a shard, or `HOLDOUT`."""
        return shard // self.per_part if shard != HOLDOUT else HOLDOUT


def held_out(key: Key, user: str, share: float) -> bool:
    """The user's own coin: true with probability `share`, independent of all other users."""
    return key.integer("holdout", user) < int(share * _MODULUS)


def prepare(table: pa.Table, key: Key, layout: Layout) -> tuple[pa.Table, Dropped]:
    """Bound a block before the shuffle and add the column `part`; clean rows in, fewer rows out."""
    kept, dropped = bound(table, key, layout.config.max_records_per_user)
    parts = [layout.part_of(shard) for shard in _shards(kept, key, layout)]
    placed = kept.append_column("part", pa.array(parts, pa.int32()))
    return placed.select(layout.shuffle_schema.names).cast(layout.shuffle_schema), dropped


def finish(table: pa.Table, part: int, key: Key, layout: Layout) -> tuple[pa.Table, Dropped]:
    """Make the final rows of one part out of all of its prepared rows, in whatever order they come.

    Raises:
        ShardError: a row belongs to another part.
    """
    kept, dropped = bound(table.drop_columns(["part"]), key, layout.config.max_records_per_user)
    shards = _shards(kept, key, layout)
    if any(layout.part_of(shard) != part for shard in set(shards)):
        raise ShardError(f"part {part} received a user of another part: the key changed during the run; start again.")
    placed = kept.append_column("shard", pa.array(shards, pa.int32()))
    placed = placed.sort_by([("shard", "ascending"), ("user", "ascending"), ("record", "ascending")])
    # A record in another shard must not move a rank here, so records are counted anew within shard and user.
    placed = ranked(placed.drop_columns(["record"]), "shard", "user")
    return placed.select(layout.schema.names).cast(layout.schema).combine_chunks(), dropped


def content_digest(table: pa.Table, key: Key, unit: PrivacyUnit = PrivacyUnit.USER) -> str:
    """The sum of the users' (or records') keyed digests modulo 2^256, in hex: any order and any part will do."""
    if unit is PrivacyUnit.RECORD:
        return f"{records_digest(table, key) % _MODULUS:064x}"
    total = sum(key.integer("content", user, *parts) for user, parts in _users(table))
    return f"{total % _MODULUS:064x}"


def add_digests(digests: list[str]) -> str:
    """Combine the content digests of disjoint sets of users or records."""
    return f"{sum(int(digest, 16) for digest in digests) % _MODULUS:064x}"


def _users(table: pa.Table) -> Iterator[tuple[str, list[str]]]:
    names = [name for name in table.column_names if name not in ("shard", "user", "record")]
    columns = [[marked(value) for value in table[name].to_pylist()] for name in names]
    rows: Any = zip(table["user"].to_pylist(), *columns, strict=True)
    for user, group in groupby(rows, key=lambda row: row[0]):
        yield user, [value for row in group for value in row[1:]]


def _shards(table: pa.Table, key: Key, layout: Layout) -> list[int]:
    users = table["user"].to_pylist()
    shard = {user: layout.shard_of(key, user) for user in set(users)}
    own = [shard[user] for user in users]
    if layout.unit is not PrivacyUnit.RECORD:
        return own
    return [at if at == HOLDOUT else to for at, to in zip(own, record_shards(table, key, layout.shards), strict=True)]


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
