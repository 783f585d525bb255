"""Sanitise a batch of texts: typed values, then words, then the text is put together again. Pure functions of coins.

    text -> NFC, values set aside -> words -> ids, cut to a public length -> draws -> words and made-up values -> text

Nothing here depends on which texts are treated together: every draw is a function of the document's tag and the word's
place in it. So any number of workers, blocks of any size and a retry all write the same bytes.

Texts become words by public rules only, so that cutting a text says nothing that the words do not. A word is a run of
letters and digits, a mark of punctuation, or an English contraction as GloVe has it (`n't`, `'s`). All that stands
before, between and after the words is white space, so a text can be put together again exactly.

Labels of sanitised documents are copied, which protects nothing of them, or answered by randomised response.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

import numpy as np
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Split

from rayprivacy.sanitize.entities import Detector, Surrogates
from rayprivacy.sanitize.mechanism import Coins, Mechanism, Positions, Tags
from rayprivacy.sanitize.table import Ids

ENTITY = "\ue000"  # a private character of Unicode, which stands for a typed value
_UNKNOWN = "\x00"
_END = r"(?!\w)"
_SHORT = rf"n't{_END}|'(?:s|ve|re|ll|d|m){_END}"
_WORD = rf"(?i:{_SHORT}|\w+?(?=n't{_END}))|\w+|[^\w\s]"
_NO_SPACE_BEFORE = re.compile(rf"(?:[.,;:!?%)\]}}]|{_SHORT})")
_OPENS = re.compile(r"([(\[{]) ")
_SPLIT = Split(Regex(_WORD), behavior="removed", invert=True)
_AT_ONCE = 10_000
Value = tuple[str, str]  # kind and text


@dataclass(frozen=True, eq=False)
class Words:
    """The words of a public vocabulary, as they are found in texts and written into them."""

    words: tuple[str, ...] = field(repr=False)  # in small letters; ids are their places

    @property
    def unknown(self) -> int:
        """The id of every other word."""
        return len(self.words)

    @property
    def entity(self) -> int:
        """The id of a typed value."""
        return len(self.words) + 1

    def ids(self, texts: Sequence[str], most: int) -> tuple[Ids, Ids]:
        """Ids of the words of all texts (`tidy`), one behind the other, and how many each text has, at most `most`."""
        found, lengths = [], []
        for start in range(0, len(texts), _AT_ONCE):
            encoded = self._tokenizer.encode_batch_fast(list(texts[start : start + _AT_ONCE]))
            each = [one.ids[:most] for one in encoded]
            lengths += list(map(len, each))
            found.append(np.fromiter(chain.from_iterable(each), dtype=np.int32))
        every = np.concatenate(found) if found else np.empty(0, dtype=np.int32)
        return every, np.array(lengths, dtype=np.int64)

    def join(self, ids: Ids, lengths: Ids) -> Iterator[str]:
        """Texts of words with one space between them, and none before a comma or a contraction; `ids` undone."""
        pieces, at = self._pieces, 0
        for length in lengths.tolist():
            text = "".join(map(pieces.__getitem__, ids[at : at + length].tolist())).removeprefix(" ")
            yield _OPENS.sub(r"\1", text) if any(map(text.__contains__, "([{")) else text
            at += length

    @cached_property
    def _pieces(self) -> list[str]:
        """Every word with the space before it; the two further ids are never written so."""
        return [word if _NO_SPACE_BEFORE.fullmatch(word) else f" {word}" for word in self.words] + ["", f" {ENTITY}"]

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        ids = {word: place for place, word in enumerate(self.words)} | {_UNKNOWN: self.unknown, ENTITY: self.entity}
        tokenizer = Tokenizer(WordLevel(ids, unk_token=_UNKNOWN))
        tokenizer.normalizer = Lowercase()
        tokenizer.pre_tokenizer = _SPLIT
        return tokenizer


def tidy(text: str) -> str:
    """A text in NFC, with one kind of apostrophe and without the private character that stands for typed values."""
    return unicodedata.normalize("NFC", text).replace("\u2019", "'").replace(ENTITY, " ").replace(_UNKNOWN, " ")


def split(text: str) -> tuple[list[str], list[str]]:
    """The words of a text as they are written, and what stands before, between and after them.

    >>> split("I didn't (ever) go.")
    (['I', 'did', "n't", '(', 'ever', ')', 'go', '.'], ['', ' ', '', ' ', '', '', ' ', '', ''])
    """
    found = _SPLIT.pre_tokenize_str(text)
    edges = [0, *chain.from_iterable(place for _, place in found), len(text)]
    return [text[start:end] for _, (start, end) in found], _outside(text, edges)


def _outside(text: str, edges: Sequence[int]) -> list[str]:
    """The pieces of a text between the first and second of some edges, the third and fourth, and so on."""
    return [text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True)]


def put_together(words: Sequence[str], gaps: Sequence[str]) -> str:
    """A text of words and of what stands around them: `split` undone."""
    return gaps[0] + "".join(word + gap for word, gap in zip(words, gaps[1:], strict=True))


@dataclass(frozen=True, eq=False)
class Sanitizer:
    """Turns texts into sanitised ones."""

    words: Words
    mechanism: Mechanism
    detector: Detector
    surrogates: Surrogates
    coins: Coins  # of the release
    most: int  # words to which texts are cut
    keep_layout: bool = False  # the white space between words is released

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
                bare[at] = ENTITY.join(_outside(text, edges))
        return bare, values

    def _made(
        self, values: dict[int, list[Value]], is_value: Ids, lengths: Ids, positions: Positions, tags: Tags
    ) -> dict[int, list[str]]:
        made: dict[int, list[str]] = {}
        owners = np.searchsorted(np.cumsum(lengths), is_value, side="right")
        for at, owner in zip(is_value.tolist(), owners.tolist(), strict=True):
            mine = made.setdefault(owner, [])
            kind, value = values[owner][len(mine)]
            mine.append(self.surrogates.make(kind, value, int(tags[owner]), int(positions[at])))
        return made

    def _written(self, bare: list[str], drawn: Ids, lengths: Ids) -> Iterator[str]:
        if not self.keep_layout:
            yield from self.words.join(drawn, lengths)
            return
        at = 0
        for text, length in zip(bare, lengths.tolist(), strict=True):
            gaps = split(text)[1]
            after = [self._spelling[each] for each in drawn[at : at + length].tolist()]
            at += length
            yield put_together(after, gaps[: length + 1])

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
