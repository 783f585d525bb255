"""A policy: a public, deterministic function that says, row by row, which words of a text are sensitive.

Selective differential privacy (Shi et al., 2022, "Selective Differential Privacy for Language Modeling") protects what
a policy function F calls sensitive, and nothing else. The claim needs three things of F, and they are built in here:

- F is public, and no part of it was made from the private corpus. Its digest names it, with all that it depends on, and
  the account is kept for this digest: two functions on one account would be two claims, and the sum is about neither;
- F reads one row, and no other, so that the redacted copy of a row is that row's own;
- the redacted copy says nothing of what was hidden but that something was: a run of hidden words, however long, becomes
  ONE mark. Line breaks stay, so that the turns of a conversation do.

A *word* is what stands between white space, and is hidden whole: "(card)" goes with "card", and "discard" stays. Hits
are looked for again in what is left, until there are none, so that redaction is idempotent, whatever stands beside
what: a pattern that was hidden by an overlapping one is found, and so is a window of words that has moved up.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rayprivacy.core.private import digest_json

MARK = "<REDACTED>"
Row = Mapping[str, Any]
_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class Piece:
    """A word of a text, or a mark in place of some."""

    word: str
    start: int  # of its characters in the text as it was
    end: int
    place: int  # how many words stood before it
    gap: str  # the white space in front of it


class Policy(ABC):
    """A policy; picklable, and holds nothing private.

    Words that are `kept`, such as the name of a speaker in front of each turn, are never hidden. The `digest` names the
    function: what it was made from, and these words.
    """

    def __init__(self, digest: str, kept: Iterable[str] = ()) -> None:
        self.kept = frozenset(kept)
        # Where none are kept it is the digest that recipes have always held.
        self.digest = digest_json([digest, sorted(self.kept)]) if self.kept else digest

    @abstractmethod
    def hits(self, pieces: Sequence[Piece], row: Row) -> set[int]:
        """Which pieces of a row's text, by their index, are sensitive; earlier hits are marks, and may be named too."""

    @abstractmethod
    def hides(self, words: str) -> bool:
        """Whether the policy is about words that it could be told to keep: then they are none that may be kept."""

    def redact(self, row: Row) -> str:
        """The text of a row with each run of sensitive words in a line as one mark."""
        return "".join(piece.gap + piece.word for piece in self._redacted(row))

    def spans(self, row: Row) -> list[tuple[int, int]]:
        """Where the sensitive runs of a row's text start and end, in characters, from left to right."""
        return [(piece.start, piece.end) for piece in self._redacted(row) if piece.word == MARK]

    def flags(self, row: Row) -> list[bool]:
        """For each word of a row's text, whether it is sensitive."""
        words = [match.span() for match in _WORD.finditer(str(row["text"]))]
        hidden = touched(words, self.spans(row))
        return [at in hidden for at in range(len(words))]

    def _redacted(self, row: Row) -> list[Piece]:
        pieces = _merged(pieces_of(str(row["text"])))
        while True:
            found = {at for at in self.hits(pieces, row) if pieces[at].word not in self.kept | {MARK}}
            if not found:
                return pieces
            pieces = _merged([replace(piece, word=MARK) if at in found else piece for at, piece in enumerate(pieces)])


def cut(text: str, most: int) -> str:
    """The beginning of a text, of `most` characters and no part of a mark.

    >>> cut("see <REDACTED> there", 9), cut("see <REDACTED> there", 14)
    ('see ', 'see <REDACTED>')
    """
    begins = text.rfind(MARK, 0, most + len(MARK) - 1)
    inside = 0 <= begins < most < begins + len(MARK)
    return text[: begins if inside else most]


def pieces_of(text: str) -> list[Piece]:
    """The words of a text."""
    pieces, end = [], 0
    for place, match in enumerate(_WORD.finditer(text)):
        pieces.append(Piece(match[0], match.start(), match.end(), place, text[end : match.start()]))
        end = match.end()
    return pieces


def _merged(pieces: list[Piece]) -> list[Piece]:
    """The pieces, with marks that follow one another in a line as one."""
    kept: list[Piece] = []
    for piece in pieces:
        if kept and piece.word == MARK == kept[-1].word and "\n" not in piece.gap:
            piece = replace(kept.pop(), end=piece.end)
        kept.append(piece)
    return kept


def text_of(pieces: Sequence[Piece]) -> tuple[str, list[tuple[int, int]]]:
    """The text that pieces make, and where in it each of them starts and ends."""
    text, places = "", []
    for piece in pieces:
        text += piece.gap
        places.append((len(text), len(text) + len(piece.word)))
        text += piece.word
    return text, places


def touched(places: Sequence[tuple[int, int]], spans: Iterable[tuple[int, int]]) -> set[int]:
    """Which pieces have a character in one of some spans.

    >>> sorted(touched([(0, 3), (4, 9), (10, 12)], [(2, 5)]))
    [0, 1]
    """
    return {at for start, end in spans for at, (first, stop) in enumerate(places) if first < end and start < stop}
