"""Policies that are not trained: words of a public list, typed values that a detector finds, and labelled slots."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import read_text
from rayprivacy.core.private import digest_json
from rayprivacy.corpus.layout import OUTSIDE
from rayprivacy.corpus.phrases import words_of, words_with_places
from rayprivacy.policies.policy import MARK, Piece, Policy, Row, text_of, touched
from rayprivacy.sanitize.entities import detector_of

_MARKED = words_of(MARK)


class KeywordPolicy(Policy):
    """Hides the words and phrases of a public list, which may not hold the word of the mark, in texts of any domain.

    Source: Domain Private Transformers (2023), section on policies: hand-picked words and n-grams of each domain, the
    lists of all domains together applied to all of them. Words are compared whole, case-folded and whatever stands
    between them, as secret phrases are (`corpus.phrases`): "Zip-Code," is "zip code", and "card" is not in "discard".
    """

    def __init__(self, phrases: Iterable[str], kept: Iterable[str] = ()) -> None:
        found = sorted({words_of(phrase) for phrase in phrases})
        if not found or () in found:
            raise ConfigError("policy.file has no words, or a phrase without a word: give at least one of each.")
        if any(set(_MARKED) & set(words) for words in found):
            raise ConfigError(f"policy.file has the word of the mark, {MARK}: remove it.")
        super().__init__(digest_json(["keywords-1", found]), kept)
        self._words = frozenset(word for words in found for word in words)
        self._by_head: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        for words in found:
            self._by_head[words[0]].append(words)

    def hides(self, words: str) -> bool:
        """Whether some word is of a phrase: a part counts, since the phrase would not be hidden whole."""
        return not self._words.isdisjoint(words_of(words))

    def hits(self, pieces: Sequence[Piece], row: Row) -> set[int]:
        """The pieces of phrases."""
        text, places = text_of(pieces)
        return touched(places, self._occurrences(text))

    def _occurrences(self, text: str) -> Iterator[tuple[int, int]]:
        words = words_with_places(text)
        for at, (head, start, _) in enumerate(words):
            for phrase in self._by_head.get(head, ()):
                if tuple(word for word, _, _ in words[at : at + len(phrase)]) == phrase:
                    yield start, words[at + len(phrase) - 1][2]


def read_lists(path: str) -> dict[str, list[str]]:
    """The phrases of a YAML file by domain; a file that is one list has one domain without a name."""
    try:
        found: Any = yaml.safe_load(read_text(Path(path)))
    except (OSError, ValueError, yaml.YAMLError) as error:
        kind = type(error).__name__
        raise ConfigError(f"policy.file is '{path}', which cannot be read ({kind}): give a YAML file.") from None
    lists: Any = {"": found} if isinstance(found, list) else found
    good = isinstance(lists, dict) and all(listed and isinstance(listed, list) for listed in lists.values())
    if not good or not all(isinstance(phrase, str) for listed in lists.values() for phrase in listed):
        raise ConfigError(f"policy.file is '{path}', which is no list of phrases, nor lists by domain: correct it.")
    return {str(domain): listed for domain, listed in lists.items()}


class PatternPolicy(Policy):
    """Hides typed values, such as numbers, dates and addresses, that the patterns of `sanitize.entities` find.

    Names of people are words like others to a pattern, and so they stay.
    """

    def __init__(self, kinds: Sequence[str], kept: Iterable[str] = ()) -> None:
        self._detector = detector_of("patterns", kinds)
        super().__init__(digest_json(["patterns-1", self._detector.name, sorted(kinds)]), kept)

    def hides(self, words: str) -> bool:
        """Whether the detector finds a value in these words."""
        return bool(self._detector.find(words))

    def hits(self, pieces: Sequence[Piece], row: Row) -> set[int]:
        """The pieces of values."""
        text, places = text_of(pieces)
        return touched(places, [(span.start, span.end) for span in self._detector.find(text)])


class SlotPolicy(Policy):
    """Hides all words but those that the row's own labels put outside slots.

    The labels are a column of the corpus, one of `corpus.join.words`, with one label for each word; they are part of
    the row, and as private as it is. A word whose label is missing is sensitive, and so are those of a turn whose
    labels do not fit its words.
    """

    def __init__(self, column: str, kept: Iterable[str] = ()) -> None:
        super().__init__(digest_json(["slots-1", column]), kept)
        self._column = column

    def hides(self, words: str) -> bool:
        """Never: labels decide, and words that were put in front of a turn are outside all slots."""
        return False

    def hits(self, pieces: Sequence[Piece], row: Row) -> set[int]:
        """The pieces inside a slot, or without a label."""
        labels = (row[self._column] or "").split()
        return {at for at, piece in enumerate(pieces) if labels[piece.place : piece.place + 1] != [OUTSIDE]}
