"""Sanitise a batch of texts: typed values, then words, then the text is put together again. Pure functions of coins.

    text -> typed values set aside -> words -> ids, cut to a public length -> draws -> words and made-up values -> text

Nothing here depends on which texts are treated together: every draw is a function of the document's tag and the word's
place in it. So any number of workers, blocks of any size and a retry all write the same bytes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rayprivacy.sanitize.coins import Coins, Tags
from rayprivacy.sanitize.entities import Detector
from rayprivacy.sanitize.mechanism import Mechanism
from rayprivacy.sanitize.surrogates import Surrogates
from rayprivacy.sanitize.table import Ids
from rayprivacy.sanitize.tokens import ENTITY, Words, cased, put_together, split, tidy

Value = tuple[str, str]  # kind and text


@dataclass(frozen=True, eq=False)
class Sanitizer:
    """What turns texts into sanitised ones.

    Attributes:
        words: the public vocabulary.
        mechanism: what replaces words.
        detector: finds typed values.
        surrogates: makes up others.
        coins: of the release.
        most: texts are cut to so many words.
        keep_case: every word gets the case of the word before it.
        keep_layout: what stood between words is released.
    """

    words: Words
    mechanism: Mechanism
    detector: Detector
    surrogates: Surrogates
    coins: Coins
    most: int
    keep_case: bool = False
    keep_layout: bool = False

    def sanitise(self, texts: Sequence[str], tags: Tags) -> list[str]:
        """The sanitised texts, one for one.

        Args:
            texts: private.
            tags: of the documents, all different, [texts].
        """
        bare, values = self._without_values(texts)
        ids, lengths = self.words.ids(bare, self.most)
        owners, starts = np.repeat(np.arange(len(texts)), lengths), np.cumsum(lengths) - lengths
        positions = (np.arange(len(ids)) - starts[owners]).astype(np.uint32)
        place = np.flatnonzero(ids != self.words.entity)
        drawn = ids.copy()
        drawn[place] = self.mechanism.draw(ids[place], tags[owners[place]], positions[place], self.coins)
        written = self._written(bare, drawn, lengths)
        made = self._made(values, ids, owners, positions, tags)
        return [_filled(text, made.get(at, [])) for at, text in enumerate(written)]

    def _without_values(self, texts: Sequence[str]) -> tuple[list[str], dict[int, list[Value]]]:
        """Texts with a mark in place of each typed value, and the values of each text that has any."""
        bare, values = list(map(tidy, texts)), {}
        for at, text in enumerate(bare):
            spans = self.detector.find(text)
            if spans:
                values[at] = [(span.kind, text[span.start : span.end]) for span in spans]
                edges = [0, *(edge for span in spans for edge in (span.start, span.end)), len(text)]
                rest = [text[edges[part] : edges[part + 1]] for part in range(0, len(edges), 2)]
                bare[at] = ENTITY.join(rest)
        return bare, values

    def _made(
        self, values: dict[int, list[Value]], ids: Ids, owners: Ids, positions: np.ndarray, tags: Tags
    ) -> dict[int, list[str]]:
        """Made-up values for the marks that are left after texts were cut."""
        made: dict[int, list[str]] = {}
        for at in np.flatnonzero(ids == self.words.entity).tolist():
            owner, mine = int(owners[at]), made.setdefault(int(owners[at]), [])
            kind, value = values[owner][len(mine)]
            mine.append(self.surrogates.make(kind, value, int(tags[owner]), int(positions[at])))
        return made

    def _written(self, bare: list[str], drawn: Ids, lengths: Ids) -> Iterator[str]:
        if not (self.keep_case or self.keep_layout):
            yield from self.words.join(drawn, lengths)
            return
        at = 0
        for text, length in zip(bare, lengths.tolist(), strict=True):
            before, gaps = split(text)
            after = [self._spelling[each] for each in drawn[at : at + length].tolist()]
            at += length
            if self.keep_case:
                after = list(map(cased, after, before))
            if self.keep_layout:
                yield put_together(after, gaps[: length + 1])
            else:
                yield self.words.write(after)

    @cached_property
    def _spelling(self) -> list[str]:
        return [*self.words.words, "", ENTITY]


def _filled(text: str, made: list[str]) -> str:
    if not made:
        return text
    parts = text.split(ENTITY)
    return parts[0] + "".join(value + part for value, part in zip(made, parts[1:], strict=True))
