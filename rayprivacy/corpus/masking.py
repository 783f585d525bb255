"""Enforce the bound on the shards of a secret phrase: mask it everywhere else, before anything looks at the text.

Neighbours: a corpus D, and D' = D with every occurrence of one phrase s masked. The order of steps is

    clean user and text -> shard of the USER -> mask there -> cut -> drop duplicates -> order and bound -> teacher

Claim: the shards of D and D' are equal, byte for byte, except for the n_s shards in which s may stay.

1. Rows stay where they are. A row's shard and hold-out coin depend on its user id and the key, neither on its text nor
   on other rows; null or empty texts are the same rows in D and D', because a mask is not empty.
2. In a shard j where s must not stay, s is in the set S_j of phrases masked there, and row by row
   m_{S_j}(m_{s}(t)) = m_{S_j}(t), equation (*) of `phrases`: the masked rows of j are equal for D and D'.
3. All later steps read masked rows of one user, hence of one shard: the cut reads a row; duplicates, the keyed order
   and the bound compare rows of one user. So shard j ends up equal.

Masking comes before the cut because a mask has another length than its phrase: a cut made first would let s decide how
much of the text behind it is read. The cut falls between words, so it makes no new occurrence ("secretary" does not
become "secret"). Duplicates and order come after, because a masked row may equal another one, and its keyed order is
that of its masked text. Which shards may hold s is read from key and phrase, not counted in the corpus.

Held-out texts are not masked: no teacher sees them, and what is measured on them is not released. Nor are user ids and
labels, for the same reason.
"""

import unicodedata
from functools import cache

import pyarrow as pa

from rayprivacy.core.errors import ShardError
from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.bounding import Dropped
from rayprivacy.corpus.layout import HOLDOUT, Layout
from rayprivacy.corpus.phrases import Phrases, cut_between_words
from rayprivacy.corpus.users import clean, whole


def tidy(block: pa.Table, key: Key, layout: Layout, phrases: Phrases | None) -> tuple[pa.Table, Dropped]:
    """Clean a block as it is read; with unit 'phrase' the phrases are masked and the cut comes after that.

    Rows by place keep their texts as they are.
    """
    if (phrases is not None) != (layout.unit is PrivacyUnit.PHRASE):
        raise ShardError(f"phrases belong to unit 'phrase' alone, and the unit is '{layout.unit}': pass both or none.")
    if layout.by_place:
        return whole(block)
    if phrases is None:
        return clean(block, layout.config.max_chars)
    uncut, dropped = clean(block, None)
    masked, more = _masked(uncut, key, layout, phrases)
    return masked, dropped + more


def _masked(table: pa.Table, key: Key, layout: Layout, phrases: Phrases) -> tuple[pa.Table, Dropped]:
    users, texts = table["user"].to_pylist(), table["text"].to_pylist()
    shard_of = {user: layout.shard_of(key, user) for user in set(users)}
    most = layout.config.max_shards_per_phrase or 0
    allowed = cache(lambda number: phrases.allowed(number, key, most, layout.shards))

    def kept_in(text: str, shard: int) -> str:
        hidden = shard != HOLDOUT
        return phrases.mask(text, lambda number: hidden and shard not in allowed(number))

    pairs = zip(users, texts, strict=True)
    masked = [kept_in(unicodedata.normalize("NFC", text), shard_of[user]) for user, text in pairs]
    return _cut(table, masked, layout.config.max_chars)


def _cut(table: pa.Table, texts: list[str], most: int) -> tuple[pa.Table, Dropped]:
    cut = [cut_between_words(text, most) for text in texts]
    left = [bool(text) for text in cut]
    place = table.column_names.index("text")
    rows = table.set_column(place, "text", pa.array(cut, pa.large_string())).filter(pa.array(left, pa.bool_()))
    longer = sum(some and len(text) > most for text, some in zip(texts, left, strict=True))
    return rows, Dropped(empty_text=left.count(False), cut_text=longer)
