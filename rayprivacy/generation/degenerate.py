r"""Texts that are no texts: nothing, no letters, or the same thing over and over.

A model trained with much noise now and then gets stuck. The rules look at one synthetic text at a time and at
nothing else, with public constants: what they drop is post-processing of the model, and no private text is read.

- `empty`: not a single word;
- `no letters`: digits, punctuation or symbols alone;
- `loop`: a word 8 times in a row, or inside one word up to 8 characters 20 times in a row;
- `repeats`: of at least 16 runs of four words (4-grams), fewer than half are distinct.

What is asked of texts that are written from a structure, a parse tree say, is in `holds_structure`.

Words are what stands between spaces, in lower case. Stretched words ("soooo") and "ha ha ha" are how people write, and
pass.

>>> is_degenerate("no no no, I mean it")
>>> is_degenerate("so " * 8)
'loop'
"""

import re
from collections.abc import Collection
from itertools import groupby
from typing import Literal

LONGEST_RUN = 7
FEWEST_GRAMS = 16
LEAST_DISTINCT = 0.5
_GRAM = 4
_LETTER = re.compile(r"[^\W\d_]")
_STUCK = re.compile(r"(\w.{0,7}?)\1{19}")  # the whole text, in scripts that put no spaces between words
_SHORTEST_STUCK = 20
_OPENED = re.compile(r"[(\[{]\s*\"?([^\s()\[\]{}\"]+)")  # what follows an opening bracket

Reason = Literal["empty", "no letters", "loop", "repeats"]


def is_degenerate(text: str) -> Reason | None:
    """Why a text is not worth keeping, or None if it is."""
    words = text.lower().split()
    if not words:
        return "empty"
    if not _LETTER.search(text):
        return "no letters"
    longest = max(sum(1 for _ in run) for _, run in groupby(words))
    if longest > LONGEST_RUN or any(len(word) >= _SHORTEST_STUCK and _STUCK.search(word) for word in words):
        return "loop"
    return "repeats" if _repeats(words) else None


def holds_structure(text: str, names: Collection[str]) -> bool:
    """Whether a text has one of some names behind an opening bracket, as structures have and sentences do not.

    >>> holds_structure("No thank you (Yield (Execute", {"Yield"}), holds_structure("Yes (tomorrow)", {"Yield"})
    (True, False)
    """
    return bool(names) and any(found in names for found in _OPENED.findall(text))


def _repeats(words: list[str]) -> bool:
    grams = len(words) - _GRAM + 1
    if grams < FEWEST_GRAMS:
        return False
    return len(set(zip(*(words[at:] for at in range(_GRAM)), strict=False))) < LEAST_DISTINCT * grams
