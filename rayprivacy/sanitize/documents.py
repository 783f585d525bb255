"""Sanitise a batch of texts: typed values, then words, then the text is put together again. Pure functions of coins.

    text -> typed values set aside -> words -> ids, cut to a public length -> draws -> words and made-up values -> text

Nothing here depends on which texts are treated together: every draw is a function of the document's tag and the word's
place in it. So any number of workers, blocks of any size and a retry all write the same bytes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rayprivacy.sanitize.coins import Coins, Positions, Tags
from rayprivacy.sanitize.entities import Detector
from rayprivacy.sanitize.mechanism import Mechanism
from rayprivacy.sanitize.surrogates import Surrogates
from rayprivacy.sanitize.table import Ids
from rayprivacy.sanitize.tokens import ENTITY, Words, cased, put_together, split, tidy

Value = tuple[str, str]  # kind and text


@dataclass(frozen=True, eq=False)
class Sanitizer:
    """Turns texts into sanitised ones.

    Attributes:
        words: the public vocabulary.
        mechanism: replaces words.
        detector: finds typed values.
        surrogates: makes up others.
        coins: of the release.
        most: number of words to which texts are cut.
        keep_case: every word gets the case of the word that it replaces.
        keep_layout: the white space between words is released.
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
        """The sanitised texts, one for one; tags of the documents, all different, [texts]."""
        bare, values = self._without_values(texts)
        ids, lengths = self.words.ids(bare, self.most)
        positions = places_in(lengths)
        # A typed value is drawn for as an unknown word would be, and its outcome is not used.
        is_value = np.flatnonzero(ids == self.words.entity)
        ids[is_value] = self.words.unknown
        drawn = self.mechanism.draw(ids, np.repeat(tags, lengths), positions, self.coins)
        drawn[is_value] = self.words.entity
        written = self._written(bare, drawn, lengths)
        made = self._made(values, is_value, lengths, positions, tags)
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
        self, values: dict[int, list[Value]], is_value: Ids, lengths: Ids, positions: Positions, tags: Tags
    ) -> dict[int, list[str]]:
        """Made-up values for the marks that are left after texts were cut."""
        made: dict[int, list[str]] = {}
        owners = np.searchsorted(np.cumsum(lengths), is_value, side="right")
        for at, owner in zip(is_value.tolist(), owners.tolist(), strict=True):
            mine = made.setdefault(owner, [])
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


def places_in(lengths: Ids) -> Positions:
    """The place of every word in its text, from 0, for texts of these lengths one behind the other."""
    starts = np.cumsum(lengths) - lengths
    places = np.arange(int(lengths.sum()), dtype=np.int64)
    places -= np.repeat(starts, lengths)
    return places.astype(np.uint32)


def _filled(text: str, made: list[str]) -> str:
    if not made:
        return text
    parts = text.split(ENTITY)
    return parts[0] + "".join(value + part for value, part in zip(made, parts[1:], strict=True))
