"""Words that a question and a sentence share, each weighed by how rare it is in released or public text (idf)."""

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class Idf:
    """How rare words, or token ids, are in some documents; of private ones no such table is ever made."""

    weights: Mapping[Hashable, float]
    unseen: float

    @staticmethod
    def of(documents: Iterable[Iterable[Hashable]]) -> "Idf":
        """The table of documents that are given as their words, or as their token ids."""
        distinct = [dict.fromkeys(document) for document in documents]  # in an order that no hash decides
        seen = Counter(word for document in distinct for word in document)
        rarest = len(distinct) + 1
        return Idf({word: math.log(rarest / (count + 0.5)) for word, count in seen.items()}, math.log(rarest / 0.5))

    def __getitem__(self, word: Hashable) -> float:
        return self.weights.get(word, self.unseen)

    def overlap(self, question: str, sentence: str) -> float:
        """The share of a question's weight that lies in words that the sentence has too; 0 for one without words."""
        asked = set(words(question))
        whole = math.fsum(self[word] for word in asked)
        return math.fsum(self[word] for word in asked & set(words(sentence))) / whole if whole else 0.0
