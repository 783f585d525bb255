"""The layout: which user or record goes to which shard, part or hold-out, and the content digest. Pure functions.

A user's shard is PRF(secret, "shard", user) mod M: it depends on the user id and the secret alone, so one user sits in
one shard, and adding a user moves no other. Each user is held out by a coin of their own, likewise. Shards are grouped
into parts, and users stand in their shard in the order of the same number's first 64 bits, so that a part can be cut
into files of about one size before anybody has looked at it. `per_part` and `cuts`, the files of a part, are a matter
of performance: they change no shard and no order. With privacy.unit 'phrase'
texts are masked first (`phrases`) and users are placed in the same way: a text that changes moves nothing.

With privacy.unit 'record' each record has its own shard, PRF(secret, "record-shard", record) mod M. A *record* is one
distinct (user, text, labels) row after cleaning: what a user repeats word for word, or beyond `max_chars`, is one
record; the same text of another user, or with other labels, is another one. One row of the source more or less is
therefore one record more or less, or none. A record's shard depends on the record and the secret alone: one record sits
in one shard, and no other record moves. Three things could break this, and are arranged so that they cannot:

- A bound per user: a new record would push an old one out, perhaps of another shard. So there is none (`check_unit`).
- The rank of a record within its user, which decides the order of rows: it is counted within shard and user.
- The hold-out: it goes by the user's coin, as for unit 'user'. The user id is part of the record, so the coin is a
  function of this record alone, and no writer is both trained on and measured on.

**By place.** All of this takes what a text says into account: equal texts are one, long ones are cut, and the order of
a user's texts is that of their digests. A claim about adding or removing a unit allows it, because a unit may be any
function of its rows. A claim that compares documents word for word does not: what is released has as many documents,
each with as many words, and one word in place of another must change neither. For such a claim (`by_place`) every row
of the source that has a user is a document, its text as it is, and is known by its *place* there, its file and its
number in it. Equal texts stay two. Which rows of a user are kept, their order, their shard and, later, their coins
follow from user and place alone. Places are part of the content digest: a source in another order is another corpus.

**Turns.** Where the rows of a conversation are its turns, they are joined into one document before anything is bounded,
dropped or cut:

    ("ann", "c1", turn 2, "to Rome")      ->   ("ann", "USR: a ticket please\nUSR: to Rome")
    ("ann", "c1", turn 1, "a ticket please")

A document is a function of the distinct rows of one conversation of one user, so a user still changes no other's. It
happens where all rows of a user have come together, in any order. A row that is there twice, place in the order and
all, is one turn. Bounds then see documents: turns that are equal word for word, "ok" say, in two places stay two. Rows
by place are all turns, and no text decides between two of them; the document has the place of its first turn. A row
without a place in the order is a document of its own, as it is: the secrets that an audit plants have none.
"""

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rayprivacy.core.errors import ConfigError, CorpusError, ShardError
from rayprivacy.core.files import Json
from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.framing import framed, marked
from rayprivacy.corpus.settings import CorpusConfig, JoinConfig, check_by_place, check_unit
from rayprivacy.corpus.users import ORDER, PLACE, Dropped, bounded, ordered, ranked, ranks

JOINED = BY, PLACED = "by", "order"  # columns of rows on their way to their document
OUTSIDE = "O"  # the label of a word that is in no slot (Ramshaw and Marcus, 1995)
HOLDOUT = -1
_MODULUS = 1 << 256
Shards = npt.NDArray[np.int64]
Places = npt.NDArray[np.uint64]
FILE = "file"  # of a row on its way: the number of the file that it belongs to
_PLACES = ("shard", FILE, "record", ORDER)


def joined(rows: pa.Table, config: JoinConfig, max_chars: int | None) -> pa.Table:
    """One row for each conversation, without `by` and `order`, cut to `max_chars` if given; its label is that of the
    first turn. The order depends on a user's own rows alone, and decides between turns of one place and text.
    """
    every: list[Json] = rows.to_pylist()
    alone, turns = ([row for row in every if (row[PLACED] is None) is without] for without in (True, False))
    alone = [{**row, **{name: " ".join(_of_turn(row, name)) for name in config.words}} for row in alone]
    between = PLACE if PLACE in rows.column_names else "text"
    placed = [(row["user"], row[BY] or "", _number(row[PLACED]), row[between], row) for row in turns]
    placed.sort(key=lambda each: each[:4])
    groups = groupby(placed, key=lambda each: each[:2])
    documents = [_document([each[-1] for each in own], config, max_chars) for _, own in groups]
    return pa.Table.from_pylist([*alone, *documents], schema=rows.schema).drop_columns([*JOINED])


def _document(turns: list[Json], config: JoinConfig, max_chars: int | None) -> Json:
    text = "\n".join(config.prefix + turn["text"] for turn in turns)
    if max_chars is not None:
        text = text[:max_chars].rstrip()
    labels = {name: " ".join(_labels(turns, name, config)[: len(text.split())]) for name in config.words}
    return {**turns[0], "text": text, **labels}


def _labels(turns: list[Json], name: str, config: JoinConfig) -> list[str]:
    """The labels of all words of a document; words of the prefix are outside all slots."""
    before = [OUTSIDE] * len(config.prefix.split())
    return [label for turn in turns for label in [*before, *_of_turn(turn, name)]]


def _of_turn(turn: Json, name: str) -> list[str]:
    """One label for each word; `?` for all where the turn has another number of labels, which says nothing of any."""
    labels, words = (turn[name] or "").split(), turn["text"].split()
    return labels if len(labels) == len(words) else ["?"] * len(words)


def _number(written: str) -> float:
    with suppress(ValueError):
        if not math.isnan(number := float(written)):
            return number
    raise CorpusError("corpus.join.order names a column that holds something else than numbers: choose another column.")


@dataclass(frozen=True)
class Layout:
    """The corpus settings, the number of shards M, how many share a part, and whose shard is one; what a row is, and
    into how many files each part is cut."""

    config: CorpusConfig
    shards: int
    per_part: int
    unit: PrivacyUnit = PrivacyUnit.USER
    by_place: bool = False
    cuts: int = 1

    def __post_init__(self) -> None:
        for name, value in (("shards", self.shards), ("per_part", self.per_part)):
            if value < 1:
                raise ConfigError(f"{name} is {value}: give a whole number of at least 1.")
        check_unit(self.config, self.unit, self.shards)
        if self.by_place:
            check_by_place(self.config, self.unit)

    @property
    def parts(self) -> int:
        """The number of parts."""
        return -(-self.shards // self.per_part)

    @property
    def files(self) -> range:
        """The numbers of all files: those of part p begin at p * cuts, those of the hold-out in front of zero."""
        return range(HOLDOUT * self.cuts, self.parts * self.cuts)

    @property
    def schema(self) -> pa.Schema:
        """The columns of every part file and of the hold-out file."""
        own = [("shard", pa.int32()), ("user", pa.string()), ("record", pa.int32()), ("text", pa.large_string())]
        return pa.schema([*own, *((name, pa.string()) for name in (*self.config.kept, *self._place))])

    @property
    def shuffle_schema(self) -> pa.Schema:
        """The columns of prepared rows, on their way to their file."""
        own = [("user", pa.string()), ("text", pa.large_string())]
        places = [(ORDER, pa.uint64()), (FILE, pa.int32())]
        return pa.schema([*own, *((name, pa.string()) for name in self.carried), *places])

    @property
    def carried(self) -> tuple[str, ...]:
        """The columns of rows on their way, beside user, text and shard; of turns, what they are joined by too."""
        return (*self.config.kept, *(JOINED if self.config.join else ()), *self._place)

    @property
    def _place(self) -> tuple[str, ...]:
        return (PLACE,) if self.by_place else ()

    @property
    def bound(self) -> int | None:
        """Rows of a user at most, on their way; turns are bounded when they have been joined, in `finish`."""
        return None if self.config.join else self.config.max_records_per_user

    def shard_of(self, key: Key, user: str) -> int:
        """The user's shard, or `HOLDOUT`; with unit 'record' only whether the user is held out."""
        return self.place_of(key, user)[0]

    def place_of(self, key: Key, user: str) -> tuple[int, int]:
        """The user's shard, and a number of 64 bits by which users are in order there."""
        number = key.integer("shard", user)
        return HOLDOUT if held_out(key, user, self.config.holdout) else number % self.shards, number >> 192

    def part_of(self, file: int) -> tuple[int, int]:
        """The part, or `HOLDOUT`, that a file belongs to, and its number there."""
        return divmod(file, self.cuts)


def held_out(key: Key, user: str, share: float) -> bool:
    """The user's own coin: true with probability `share`, independent of all other users."""
    return key.integer("holdout", user) < int(share * _MODULUS)


def prepare(table: pa.Table, key: Key, layout: Layout) -> tuple[pa.Table, Dropped]:
    """Find where the rows of a clean block go, and bound it where a user exceeds the bound; in `shuffle_schema`."""
    kept, dropped = ordered(table, key), Dropped()
    if layout.bound and (pc.max(table["user"].value_counts().field("counts")).as_py() or 0) > layout.bound:
        kept, dropped = bounded(kept, layout.bound)
    files = _files(*_places_of(kept, key, layout), layout)
    placed = kept.append_column(FILE, pa.array(files, pa.int32()))
    return placed.select(layout.shuffle_schema.names).cast(layout.shuffle_schema), dropped


def finish(table: pa.Table, file: int, key: Key, layout: Layout) -> tuple[pa.Table, Dropped]:
    """The final rows of one file from its prepared rows, in any order; those of a part's files follow each other."""
    kept, dropped = _bounded_documents(table, key, layout)
    shards, places = _places_of(kept, key, layout)
    if (_files(shards, places, layout) != file).any():
        raise ShardError("a file received a user of another one: the key changed during the run; start again.")
    order = np.lexsort((places, shards))  # it is stable: hence by shard, the user's place, user and order
    placed = kept.append_column("shard", pa.array(shards, pa.int32())).take(pa.array(order))
    # A record in another shard must not move a rank here, so records are counted anew within shard and user.
    placed = ranked(placed, "shard", "user")
    return placed.select(layout.schema.names).cast(layout.schema).combine_chunks(), dropped


def _bounded_documents(table: pa.Table, key: Key, layout: Layout) -> tuple[pa.Table, Dropped]:
    """What a user's prepared rows come to, sorted by user and order; a bound sees documents, not the turns of one."""
    rows, config, repeats = table.drop_columns([FILE]), layout.config, Dropped()
    if config.join:
        # Blocks have dropped repeats of their own, and which rows share a block depends on everybody's: none are left.
        # It also puts the rows in an order of their own, which decides between turns in one place.
        turns, repeats = bounded(rows, None)
        most = None if layout.by_place else config.max_chars
        rows = ordered(joined(turns.drop_columns([ORDER]), config.join, most), key)
    kept, dropped = bounded(rows, config.max_records_per_user)
    return kept, repeats + dropped


def content_digest(table: pa.Table, key: Key, unit: PrivacyUnit = PrivacyUnit.USER) -> str:
    """The sum of the keyed digests of users, whose rows are neighbours, or of records: any order will do."""
    if unit is PrivacyUnit.RECORD:
        return _summed(key.digests("content-record", framed(_record(table)).rows()))
    names = [name for name in table.column_names if name not in ("user", *_PLACES)]
    starts = np.flatnonzero(np.diff(ranks(table["user"]), prepend=-1))
    users = framed([table["user"].take(pa.array(starts))]).rows()
    texts = framed([marked(table[name]) for name in names]).runs(starts)
    return _summed(key.digests("content", (b"".join(both) for both in zip(users, texts, strict=True))))


def _summed(digests: Iterable[bytes]) -> str:
    return add_digests(digest.hex() for digest in digests)


def add_digests(digests: Iterable[str]) -> str:
    """The content digest of disjoint sets of users or records together, modulo 2^256."""
    return f"{sum(int(digest, 16) for digest in digests) % _MODULUS:064x}"


def _places_of(table: pa.Table, key: Key, layout: Layout) -> tuple[Shards, Places]:
    """The shard of each row, and the place there of its user; a user is hashed once, however many rows they have."""
    users = table["user"].combine_chunks().dictionary_encode()
    encoded = users.combine_chunks() if isinstance(users, pa.ChunkedArray) else users
    found = [layout.place_of(key, user) for user in encoded.dictionary.to_pylist()]
    rows = encoded.indices.to_numpy() if len(table) else np.zeros(0, np.int64)
    own = np.array([shard for shard, _ in found], np.int64)[rows]
    places = np.array([place for _, place in found], np.uint64)[rows]
    if layout.unit is not PrivacyUnit.RECORD:
        return own, places
    # Of a record: by its user, text and labels alone; by user and place where rows have one.
    named = [table["user"], table[PLACE]] if PLACE in table.column_names else _record(table)
    digests = key.digests("record-shard", framed(named).rows())
    records = [int.from_bytes(digest, "big") % layout.shards for digest in digests]
    return np.where(own == HOLDOUT, HOLDOUT, np.array(records, np.int64)), places


def _files(shards: Shards, places: Places, layout: Layout) -> Shards:
    """The file of each row: a part is cut evenly between the first place of its first shard and the last of its last.

    What is computed here never falls while shard and place rise, so that no rounding puts a row before its file.
    """
    parts = np.where(shards == HOLDOUT, HOLDOUT, shards // layout.per_part)
    first = np.where(shards == HOLDOUT, HOLDOUT, parts * layout.per_part)
    width = np.where(shards == HOLDOUT, 1, np.minimum(layout.per_part, layout.shards - first))
    within = (shards - first + places.astype(np.float64) / 2.0**64) / width
    return np.asarray(parts * layout.cuts + np.minimum((within * layout.cuts).astype(np.int64), layout.cuts - 1))


def _record(table: pa.Table) -> list[pa.ChunkedArray]:
    """What makes a record: its user, text and labels."""
    labels = [name for name in table.column_names if name not in ("user", "text", *_PLACES)]
    return [marked(table[name]) for name in ("user", "text", *labels)]
