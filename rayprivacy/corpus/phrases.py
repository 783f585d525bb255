"""Secret phrases: read them, find and mask them in texts, and say in which shards each of them may stay.

A *word* is a run of letters, digits, underscores and combining marks; its canonical form is case-folded and in NFC. An
*occurrence* of a phrase is the run of its words, one after the other, whatever stands between them: "Ann Lee" occurs in
"ANN-LEE." and not in "Annlee". To *mask* an occurrence is to put `MASK` in its place.

Two rules on the list make masking simple algebra; a list that breaks one is refused:

1. No two phrases, nor two copies of one, can overlap in a text: none contains another, and none ends as another (or
   itself) begins. So occurrences are disjoint, and masking one phrase takes no word from another.
2. No phrase has the word of the mask. So an occurrence that is masked cannot become part of another one.

Write m_S for masking all occurrences of the phrases in a set S. By 1 and 2, for every text t and phrase s,

    m_S(m_{s}(t)) = m_{S + s}(t),      and so, when s is in S,      m_S(m_{s}(t)) = m_S(t).        (*)

Each phrase may stay in n_s of the M shards and is masked in all others. Which ones, a keyed hash of the phrase says: it
reads no text of the corpus. Neighbours are a corpus D, and D' = D with every occurrence of one phrase s masked. The
order of steps is

    clean user and text -> shard of the USER -> mask there -> cut -> drop duplicates -> order and bound -> teacher

Claim: the shards of D and D' are equal, byte for byte, except for the n_s shards in which s may stay.

1. Rows stay where they are. A row's shard and hold-out coin depend on its user id and the key, neither on its text nor
   on other rows; null or empty texts are the same rows in D and D', because a mask is not empty.
2. In a shard j where s must not stay, s is in the set S_j of phrases masked there, and row by row
   m_{S_j}(m_{s}(t)) = m_{S_j}(t), by (*): the masked rows of j are equal for D and D'.
3. All later steps read masked rows of one user, hence of one shard: the cut reads a row; duplicates, the keyed order
   and the bound compare rows of one user. So shard j ends up equal.

Masking comes before the cut because a mask has another length than its phrase: a cut made first would let s decide how
much of the text behind it is read. The cut falls between words, so it makes no new occurrence ("secretary" does not
become "secret"). Duplicates and order come after, because a masked row may equal another one, and its keyed order is
that of its masked text.

Held-out texts are not masked: no teacher sees them, and what is measured on them is not released. Nor are user ids and
labels, for the same reason.

>>> phrases = Phrases.of(["Ann Lee", "12 High Street"])
>>> phrases.mask("Ask ann lee, 12 high-street!", lambda number: True)
'Ask [masked], [masked]!'
"""

import re
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NoReturn

import pyarrow as pa

from rayprivacy.core.errors import ConfigError, ShardError
from rayprivacy.core.files import read_text
from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.layout import HOLDOUT, Layout
from rayprivacy.corpus.users import Dropped, clean, whole

MASK, MASK_WORD = "[masked]", "masked"
MOST_WORDS = 64
Words = tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Phrases:
    """A checked list of phrases, each as its canonical words; it neither prints nor pickles."""

    words: tuple[Words, ...]

    @staticmethod
    def of(lines: Sequence[str]) -> "Phrases":
        """Check the lines of a file; blank ones are skipped."""
        numbered = [(number, words_of(line)) for number, line in enumerate(lines, 1) if line.strip()]
        if not numbered:
            raise ConfigError("corpus.phrases names a file without phrases: write one a line.")
        for number, words in numbered:
            if not 1 <= len(words) <= MOST_WORDS:
                raise ConfigError(f"corpus.phrases: line {number} has {len(words)} words: give 1 to {MOST_WORDS}.")
            if MASK_WORD in words:
                raise ConfigError(f"corpus.phrases: line {number} has the word that masks put in texts: remove it.")
        _check_overlaps(numbered)
        return Phrases(tuple(words for _, words in numbered))

    @cached_property
    def _heads(self) -> dict[str, list[int]]:
        heads = defaultdict(list)
        for number, words in enumerate(self.words):
            heads[words[0]].append(number)
        return dict(heads)

    def find(self, text: str) -> Iterator[tuple[int, int, int]]:
        """All occurrences in a text in NFC, from left to right: which phrase, where it starts and where it ends."""
        spans = words_with_places(text)
        for at, (head, start, _) in enumerate(spans):
            for number in self._heads.get(head, ()):
                words = self.words[number]
                if tuple(word for word, _, _ in spans[at : at + len(words)]) == words:
                    yield number, start, spans[at + len(words) - 1][2]

    def mask(self, text: str, hidden: Callable[[int], bool]) -> str:
        """Mask all occurrences, in a text in NFC, of the phrases whose numbers are hidden."""
        pieces = []
        done = 0
        for number, start, end in self.find(text):
            if hidden(number):
                pieces += [text[done:start], MASK]
                done = end
        return "".join([*pieces, text[done:]])

    def digest(self, key: Key) -> str:
        """Names the list, in any order of lines, without a hash that a guess could be checked against."""
        return key.digest("phrases", *sorted(" ".join(words) for words in self.words))

    def allowed(self, number: int, key: Key, most: int, shards: int) -> frozenset[int]:
        """The `most` shards in which one phrase may stay: the first distinct values of PRF(secret, draw, phrase)."""
        chosen: set[int] = set()
        draw = 0
        while len(chosen) < most:
            chosen.add(key.integer("phrase-shard", draw, *self.words[number]) % shards)
            draw += 1
        return frozenset(chosen)

    def __repr__(self) -> str:
        return "Phrases(<sealed>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Phrases are never pickled: pass a PhraseFile and load it where it is needed")


@dataclass(frozen=True)
class PhraseFile:
    """Where the private list is, and its keyed digest: safe as a Ray argument."""

    path: Path
    digest: str

    @staticmethod
    def of(path: str, key: Key) -> "PhraseFile":
        """Read and check the file now."""
        return PhraseFile(Path(path).absolute(), load_phrases(path).digest(key))

    def load(self, key: Key) -> Phrases:
        """Read the list again."""
        phrases = load_phrases(str(self.path))
        if phrases.digest(key) != self.digest:
            raise ShardError("corpus.phrases names a file that changed during the run: start again.")
        return phrases


def load_phrases(path: str) -> Phrases:
    """Read one phrase a line in UTF-8."""
    try:
        text = read_text(Path(path))
    except (OSError, UnicodeDecodeError) as error:
        kind = type(error).__name__
    else:
        return Phrases.of(text.split("\n"))
    raise ConfigError(f"corpus.phrases is '{path}', which cannot be read ({kind}): give a file of UTF-8 text.")


def words_of(text: str) -> Words:
    """The canonical words of any text."""
    return tuple(word for word, _, _ in words_with_places(unicodedata.normalize("NFC", text)))


def words_with_places(text: str) -> list[tuple[str, int, int]]:
    """The canonical words of a text in NFC, each with the characters where it starts and ends."""
    return [(canonical(match[0]), match.start(), match.end()) for match in _word().finditer(text)]


def canonical(word: str) -> str:
    """One word in NFC, case-folded."""
    return unicodedata.normalize("NFC", word.casefold())


def cut_between_words(text: str, most: int) -> str:
    """The first `most` characters, without a word that the cut would leave in part.

    >>> cut_between_words("a secretary", 8)
    'a'
    """
    if len(text) <= most:
        return text
    head = text[:most]
    if _word().fullmatch(text[most - 1 : most + 1]):
        head = head[: list(_word().finditer(head))[-1].start()]
    return head.rstrip()


@cache
def _word() -> re.Pattern[str]:
    # Python's \w leaves combining marks out, and would see two words in "e" with an accent that NFC cannot join.
    marks = "".join(chr(n) for n in range(sys.maxunicode + 1) if unicodedata.category(chr(n))[0] == "M")
    return re.compile(rf"[\w{marks}]+")


def _check_overlaps(numbered: Sequence[tuple[int, Words]]) -> None:
    """Require that no phrase repeats or contains another, and that none ends as another, or itself, begins."""
    wholes: dict[Words, int] = {}
    for line, words in numbered:
        if words in wholes:
            raise ConfigError(f"corpus.phrases: line {line} repeats line {wholes[words]}: remove one of them.")
        wholes[words] = line
    starts = {words[:end]: line for line, words in numbered for end in range(1, len(words))}
    for line, words in numbered:
        parts = (words[start:end] for end in range(1, len(words) + 1) for start in range(end))
        for part in parts:
            if part in wholes and part != words:
                raise ConfigError(f"corpus.phrases: line {line} contains line {wholes[part]}: remove one of them.")
        for at in range(1, len(words)):
            if words[at:] in starts:
                raise ConfigError(
                    f"corpus.phrases: line {line} ends as line {starts[words[at:]]} begins, so that they can overlap: "
                    "shorten one of them."
                )


def tidy(block: pa.Table, key: Key, layout: Layout, phrases: Phrases | None) -> tuple[pa.Table, Dropped]:
    """Clean a block, by place not at all; for unit 'phrase', phrases are masked, and the cut comes after that."""
    if (phrases is not None) != (layout.unit is PrivacyUnit.PHRASE):
        raise ShardError(f"phrases belong to unit 'phrase' alone, and the unit is '{layout.unit}': pass both or none.")
    if layout.by_place:
        return whole(block)
    if phrases is None:
        return clean(block, layout.config.max_chars)
    uncut, dropped = clean(block, None)
    masked, more = _masked(uncut, key, layout, phrases)
    return masked, dropped + more


def _masked(table: pa.Table, key: Key, layout: Layout, phrases: Phrases) -> tuple[pa.Table, Dropped]:
    users, texts = table["user"].to_pylist(), table["text"].to_pylist()
    shard_of = {user: layout.shard_of(key, user) for user in set(users)}
    most = layout.config.max_shards_per_phrase or 0
    allowed = cache(lambda number: phrases.allowed(number, key, most, layout.shards))

    def masked(text: str, shard: int) -> str:
        found = unicodedata.normalize("NFC", text)
        return found if shard == HOLDOUT else phrases.mask(found, lambda number: shard not in allowed(number))

    rows = [masked(text, shard_of[user]) for user, text in zip(users, texts, strict=True)]
    return _cut(table, rows, layout.config.max_chars)


def _cut(table: pa.Table, texts: list[str], most: int) -> tuple[pa.Table, Dropped]:
    cut = [cut_between_words(text, most) for text in texts]
    left = [bool(text) for text in cut]
    place = table.column_names.index("text")
    rows = table.set_column(place, "text", pa.array(cut, pa.large_string())).filter(pa.array(left, pa.bool_()))
    longer = sum(some and len(text) > most for text, some in zip(texts, left, strict=True))
    return rows, Dropped(empty_text=left.count(False), cut_text=longer)
