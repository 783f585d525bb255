"""Verbatim overlap: the texts that repeat a run of words of another text, word for word.

A shared run of eight words is a sign of copying; people share common phrases too, so the share with held-out users
stands beside it. Words are compared without case and punctuation. Only counts leave this module.

>>> overlap = Overlap(["it was a bright cold day in April, I think", "hello"], words=8)
>>> overlap.shared_with(["It was a bright cold day in april and the clocks struck"])
{0}
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from rayprivacy.core.errors import ConfigError

WORDS = 8


class Overlap:
    """The runs of a number of words of some texts, to be looked up in many others, which may stream by."""

    def __init__(self, texts: Sequence[str], words: int = WORDS) -> None:
        if words < 1:
            raise ConfigError(f"words is {words}: give the length of a run, at least 1.")
        self._words = words
        self._texts: dict[tuple[str, ...], set[int]] = defaultdict(set)
        for place, text in enumerate(texts):
            for run in _runs(text, words):
                self._texts[run].add(place)

    @property
    def long_enough(self) -> int:
        """How many of the texts have a run at all."""
        return len(set().union(*self._texts.values()))

    def shared_with(self, others: Iterable[str]) -> set[int]:
        """The places of the texts that share a run with one of the others."""
        found: set[int] = set()
        for other in others:
            for run in _runs(other, self._words):
                found |= self._texts.get(run, set())
        return found


def _runs(text: str, words: int) -> Iterator[tuple[str, ...]]:
    listed = re.findall(r"\w+", text.casefold())
    return (tuple(listed[at : at + words]) for at in range(len(listed) - words + 1))
