"""The slot policy: the words that the row's own labels put into a slot are sensitive.

The labels are a column of the corpus, with one label for each word; they are part of the row, and as private as it is.
A word whose label is missing is sensitive, and so are those of a turn whose labels do not fit its words.
"""

from collections.abc import Iterable, Sequence

from rayprivacy.core.artifacts import digest_json
from rayprivacy.corpus.join import OUTSIDE
from rayprivacy.policies.policy import Piece, Policy, Row


class SlotPolicy(Policy):
    """Hides all words but those outside slots; the labels' column is one of `corpus.join.words`."""

    def __init__(self, column: str, kept: Iterable[str] = ()) -> None:
        super().__init__(digest_json(["slots-1", column]), kept)
        self._column = column

    def hides(self, words: str) -> bool:
        """Never: labels decide, and words that were put in front of a turn are outside all slots."""
        return False

    def hits(self, pieces: Sequence[Piece], row: Row) -> set[int]:
        """See `Policy`."""
        labels = (row[self._column] or "").split()
        return {at for at, piece in enumerate(pieces) if labels[piece.place : piece.place + 1] != [OUTSIDE]}
