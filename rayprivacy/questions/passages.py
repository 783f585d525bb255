"""Pieces of texts, by the places of their characters: sentences, blocks of words, windows; and which texts are shared.

A place is a pair of offsets, so that what is found in a piece is found again in its text: `text[start:end]`.
"""

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

from rayprivacy.corpus.public import sentence_ends

Span = tuple[int, int]
T = TypeVar("T")
_WORD = re.compile(r"\S+")
_ALONE = re.compile(r"(?<=\s)[.?!](?:\s(?:''|-rrb-))*(?=\s)")  # a mark that stands alone, as tokenised corpora have it
_BRACKETS = re.compile(r"-[lr]rb-")  # how tokenised corpora write round brackets
_OTHER = re.compile(r"[^a-z0-9]+")


def sentences(text: str) -> list[Span]:
    """The sentences of a text, without the white space around them, also of a tokenised text.

    >>> [("It rains. "[a:b], b) for a, b in sentences("It rains. ")]
    [('It rains.', 9)]
    >>> [("it rains . we go ."[a:b]) for a, b in sentences("it rains . we go .")]
    ['it rains .', 'we go .']
    """
    ends = sorted({*sentence_ends(text), *(mark.end() for mark in _ALONE.finditer(text)), len(text)})
    pieces = (_stripped(text, start, end) for start, end in zip([0, *ends], ends, strict=False))
    return [(start, end) for start, end in pieces if start < end]


def _stripped(text: str, start: int, end: int) -> Span:
    piece = text[start:end]
    return end - len(piece.lstrip()), start + len(piece.rstrip())


def blocks(text: str, words: int, stride: int) -> list[Span]:
    """Blocks of at most so many words, each `stride` words behind the one before; the last one ends the text.

    >>> text = "a b c d e"
    >>> [text[start:end] for start, end in blocks(text, 3, 2)]
    ['a b c', 'c d e']
    """
    found = [match.span() for match in _WORD.finditer(text)]
    starts = range(0, max(1, len(found) - words + stride), stride)
    return [(found[at][0], found[at : at + words][-1][1]) for at in starts] if found else []


def windows(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Items in rows of `size`; the last row may be shorter."""
    return [items[at : at + size] for at in range(0, len(items), size)]


def plain(text: str) -> str:
    """A text as its letters and digits alone, by which copies are known in spite of tokenisers and letter case.

    >>> plain("The AFC (-LRB- a -RRB-)") == plain("the afc ( a )")
    True
    """
    return _OTHER.sub("", _BRACKETS.sub(" ", text.lower()))


def shared(texts: Iterable[str], others: Iterable[str]) -> list[bool]:
    """Which texts lie, as `plain` has them, in one of the others; a text without letters and digits lies in none."""
    held = "\n".join(map(plain, others))
    return [bool(found := plain(text)) and found in held for text in texts]
