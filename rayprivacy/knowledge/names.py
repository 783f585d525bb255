"""The names that one user's texts mention: words that no public list of English words has, and that are no places.

The list is the one that ships with the small English model of spaCy, a package of the extra: 49,000 words, among them
hardly a product, a drug or an invented name. A word is known by its stem too. Words that are misspelt are names to this
rule; each is written by few users, and so it is not released. It sees no one else's texts.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.written import read_text
from rayprivacy.knowledge.kinds import landmarks, read_sentences
from rayprivacy.knowledge.settings import KnowledgeConfig
from rayprivacy.questions.answers import normalised
from rayprivacy.questions.entities import MODEL
from rayprivacy.questions.lexical import placed_stems

Order = Callable[..., int]  # the user's own keyed order, e.g. partial(key.integer, "knowledge", user)
WORD = re.compile(r"[^\W_]{1,40}(?:[-'\u2019][^\W_]{1,40}){0,3}")
WORDS = 3  # of a name, at most
_OF = re.compile(r"['\u2019]s$")


def name_of(text: str) -> str:
    """The one form of a name.

    >>> name_of("Ortho-Tri-Cyclen's")
    'orthotricyclen'
    """
    return normalised(_OF.sub("", text).replace("\u2019", "'"))


def public_names(path: str) -> list[str]:
    """The names of a public file, one a line, each in its one form: every word as the reader has it.

    Raises:
        ConfigError: it cannot be read, has no name, or a line is none.
    """
    key = "knowledge.names.file"
    lines = read_text(path, key, "give one name a line in UTF-8").split("\n")
    names = [" ".join(filter(None, map(name_of, WORD.findall(line)))) for line in lines]
    for number, (line, name) in enumerate(zip(lines, names, strict=True), start=1):
        if line.strip() and not name:
            raise ConfigError(f"{key} is {path!r}, whose line {number} has no word of a name: drop the line.")
    if not any(names):
        raise ConfigError(f"{key} is {path!r}, which has no name: write one a line, or leave the key out.")
    return sorted({*names} - {""})


class Names:
    """Finds names in texts, given public words that are none."""

    def __init__(self, config: KnowledgeConfig) -> None:
        self._config = config.names
        self._places = any(each.kind == "place" for each in config.attributes)
        said = [phrase for each in config.attributes for phrase in (*each.values, *each.unit, *each.questions)]
        self._known = english() | {stem for phrase in said for stem, _ in placed_stems(phrase)}

    def of(self, texts: Iterable[str], order: Order) -> list[str]:
        """The distinct names of one user's texts, as many as count: those of most texts first, then in their own order.

        What stands in one text is often misspelt, or mentioned in passing.
        """
        found = Counter(name for text in texts for name in {*self.mentioned(text)})
        return sorted(found, key=lambda name: (-found[name], order(name), name))[: self._config.most]

    def mentioned(self, text: str) -> Iterator[str]:
        """The names in a text: runs of unknown words, beside each other."""
        for sentence in read_sentences(text):
            yield from self._runs(sentence)

    def _runs(self, sentence: str) -> Iterator[str]:
        apart = landmarks(sentence) if self._places else []
        run, end = list[str](), 0
        for match in WORD.finditer(sentence):
            unknown = self._is_name(match[0]) and not any(a <= match.start() < b for a, b in apart)
            if run and (not unknown or sentence[end : match.start()] != " " or len(run) == WORDS):
                yield " ".join(run)
                run = []
            if unknown:
                run, end = [*run, name_of(match[0])], match.end()
        if run:
            yield " ".join(run)

    def _is_name(self, word: str) -> bool:
        plain = _OF.sub("", word)
        if len(plain) < self._config.letters or not plain.replace("-", "").isalpha():
            return False
        return any(stem not in self._known for stem, _ in placed_stems(plain))


@cache
def english() -> frozenset[str]:
    """The stems of a public list of English words."""
    roots = getattr(find_spec(MODEL), "submodule_search_locations", ())  # its import would bring spaCy
    (file,) = (path for root in roots for path in Path(root).glob(f"{MODEL}-*/vocab/strings.json"))
    words = json.loads(file.read_text("utf-8"))
    return frozenset(stem for word in words if word.isalpha() for stem, _ in placed_stems(word))
