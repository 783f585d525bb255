"""Join the rows of a conversation, its turns, into one document, before anything is bounded, dropped or cut.

    ("ann", "c1", turn 2, "to Rome")      ->   ("ann", "USR: a ticket please\\nUSR: to Rome")
    ("ann", "c1", turn 1, "a ticket please")

A document is a function of the distinct rows of one conversation of one user, so a user still changes nobody else's.
It happens where all rows of a user have come together, in any order. A row that is there twice, place in the order and
all, is one turn. Bounds then see documents: turns that are equal word for word, "ok" say, in two places stay two.
Rows that are known by their place in the source (see `layout`) are all turns, and no text decides between two of them;
the document has the place of its first turn.

A row without a place in the order is a document of its own, as it is: the secrets that an audit plants have none.
"""

import math
from itertools import groupby
from typing import Any

import pyarrow as pa

from rayprivacy.core.errors import CorpusError
from rayprivacy.corpus.bounding import PLACE
from rayprivacy.corpus.settings import JoinConfig

JOINED = BY, PLACED = "by", "order"  # columns of rows on their way to their document
OUTSIDE = "O"  # the label of a word that is in no slot (Ramshaw and Marcus, 1995)
Row = dict[str, Any]


def joined(rows: pa.Table, config: JoinConfig, max_chars: int | None) -> pa.Table:
    """One row for each conversation.

    Args:
        rows: user, text, labels, columns of word labels, and `by` and `order` as strings; distinct, and in an order
            that depends on a user's own rows alone, which decides between turns of one place and text.
        config: how they are joined.
        max_chars: longer documents are cut; None leaves all as they are.

    Returns:
        The same columns without `by` and `order`. A label is that of the first turn.

    Raises:
        CorpusError: a place in the order is no number.
    """
    every: list[Row] = rows.to_pylist()
    alone, turns = ([row for row in every if (row[PLACED] is None) is without] for without in (True, False))
    alone = [{**row, **{name: " ".join(_of_turn(row, name)) for name in config.words}} for row in alone]
    between = PLACE if PLACE in rows.column_names else "text"
    placed = [(row["user"], row[BY] or "", _number(row[PLACED]), row[between], row) for row in turns]
    placed.sort(key=lambda each: each[:4])
    groups = groupby(placed, key=lambda each: each[:2])
    documents = [_document([each[-1] for each in own], config, max_chars) for _, own in groups]
    return pa.Table.from_pylist([*alone, *documents], schema=rows.schema).drop_columns([*JOINED])


def _document(turns: list[Row], config: JoinConfig, max_chars: int | None) -> Row:
    text = "\n".join(config.prefix + turn["text"] for turn in turns)
    if max_chars is not None:
        text = text[:max_chars].rstrip()
    labels = {name: " ".join(_labels(turns, name, config)[: len(text.split())]) for name in config.words}
    return {**turns[0], "text": text, **labels}


def _labels(turns: list[Row], name: str, config: JoinConfig) -> list[str]:
    """The labels of all words of a document; words of the prefix are outside all slots."""
    before = [OUTSIDE] * len(config.prefix.split())
    return [label for turn in turns for label in [*before, *_of_turn(turn, name)]]


def _of_turn(turn: Row, name: str) -> list[str]:
    """One label for each word; `?` for all where the turn has another number of labels, which says nothing of any."""
    labels, words = (turn[name] or "").split(), turn["text"].split()
    return labels if len(labels) == len(words) else ["?"] * len(words)


def _number(written: str) -> float:
    try:
        number = float(written)
    except ValueError:
        number = math.nan
    if not math.isnan(number):
        return number
    raise CorpusError("corpus.join.order names a column that holds something else than numbers: choose another column.")
