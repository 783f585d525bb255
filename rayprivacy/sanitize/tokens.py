"""Text as words and back: public rules only, so that cutting a text says nothing that the words do not.

    text -> NFC -> words and the white space between them -> ids of the vocabulary

A word is a run of letters and digits, a mark of punctuation, or an English contraction as GloVe has it (`n't`, `'s`).
All that stands before, between and after the words is white space, so a text can be put together again exactly.
Hugging Face's `tokenizers` does the work, in Rust.
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

from rayprivacy.sanitize.table import Ids

ENTITY = "\ue000"  # a private character of Unicode, which stands for a typed value
_UNKNOWN = "\x00"
_END = r"(?!\w)"
_SHORT = rf"n't{_END}|'(?:s|ve|re|ll|d|m){_END}"
_WORD = rf"(?i:{_SHORT}|\w+?(?=n't{_END}))|\w+|[^\w\s]"
_NO_SPACE_BEFORE = re.compile(rf"(?:[.,;:!?%)\]}}]|{_SHORT})")
_OPENS = re.compile(r"([(\[{]) ")
_AT_ONCE = 10_000


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

    def write(self, words: Sequence[str]) -> str:
        """A text of words, spaced as `join` does."""
        text = "".join(word if _NO_SPACE_BEFORE.fullmatch(word) else f" {word}" for word in words)
        return _OPENS.sub(r"\1", text.removeprefix(" "))

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


_SPLIT = Split(Regex(_WORD), behavior="removed", invert=True)


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
    return [text[start:end] for _, (start, end) in found], [
        text[edges[at] : edges[at + 1]] for at in range(0, len(edges), 2)
    ]


def put_together(words: Sequence[str], gaps: Sequence[str]) -> str:
    """A text of words and of what stands around them: `split` undone."""
    return gaps[0] + "".join(word + gap for word, gap in zip(words, gaps[1:], strict=True))


def cased(word: str, like: str) -> str:
    """A word in capitals, with a capital, or as it is, like another one.

    >>> [cased("tree", "HOUSE"), cased("tree", "House"), cased("tree", "I"), cased("tree", "house")]
    ['TREE', 'Tree', 'Tree', 'tree']
    """
    if len(like) > 1 and like.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if like[:1].isupper() else word
