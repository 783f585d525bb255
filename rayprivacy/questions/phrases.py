"""With which words questions begin: the phrases of question phrase prediction (QPP; Yue et al., BIBM 2021).

A phrase is the first two words of a question. One that few public questions begin with degrades to its first word: of
`Has lasix ...` and `Has insulin ...` the phrase is `Has`. The phrases, and how frequent they are, are those of PUBLIC
questions: phrases of private questions that pass a threshold would be told without noise.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rayprivacy.questions.settings import PhrasesConfig

OTHER = "other"
TYPES = (
    *("what", "who", "how", "which", "when", "where", "why", "whose", "whom"),
    *("is", "are", "was", "were", "do", "does", "did", "can", "has", "have", "any"),
)


@dataclass(frozen=True)
class Phrases:
    """The phrases of public questions, each with the number of those that begin with it."""

    counts: Counter[str]
    words: int  # of a phrase that has not degraded

    @staticmethod
    def of(questions: Iterable[str], config: PhrasesConfig) -> "Phrases":
        """The phrases of public questions; what has a smaller share of them than `least_share` degrades."""
        whole = Counter(_first(question, config.words) for question in questions)
        least, counts = config.least_share * whole.total(), Counter[str]()
        for phrase, count in whole.items():
            counts[phrase if count > least else _first(phrase, 1)] += count
        return Phrases(counts, config.words)

    def __call__(self, text: str) -> str | None:
        """The phrase that a text begins with, or what it degrades to; None where it is not known either."""
        found = (phrase for words in (self.words, 1) if (phrase := _first(text, words)) in self.counts)
        return next(found, None)

    def sets(self, pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
        """For each evidence of public pairs the phrases of its questions, those first that are the most frequent."""
        found: dict[str, set[str]] = {}
        for evidence, question in pairs:
            if phrase := self(question):
                found.setdefault(evidence, set()).add(phrase)
        return {evidence: sorted(own, key=self._rank) for evidence, own in found.items()}

    def frequent(self, most: int) -> list[str]:
        """The phrases that begin the most public questions."""
        return sorted(self.counts, key=self._rank)[:most]

    def _rank(self, phrase: str) -> tuple[int, str]:
        return -self.counts[phrase], phrase


def _first(text: str, words: int) -> str:
    return " ".join(text.split()[:words])


def written(phrases: Iterable[str]) -> str:
    """A set of phrases as it is learnt and predicted: one a line."""
    return "\n".join(phrases)


def read(text: str, known: Phrases) -> list[str]:
    """The phrases of a predicted set, in its order, each once; what is not known degrades or is left out.

    >>> read("what is\\nwhat pear", Phrases(Counter({"what is": 3, "what": 2}), 2))
    ['what is', 'what']
    """
    return [*dict.fromkeys(phrase for line in text.split("\n") if (phrase := known(line)))]


def question_type(question: str) -> str:
    """The first word of a question if it is one that asks, or `other`.

    >>> question_type("Who came?"), question_type("in what year did it begin ?")
    ('who', 'other')
    """
    first = _first(question.lower(), 1).rstrip("?")
    return first if first in TYPES else OTHER


def divergence(questions: Iterable[str], public: Iterable[str]) -> float:
    """KL divergence of the types of questions from those of public ones, in nats x 100.

    Each type counts half a public question more than there are, so that one that public questions lack costs much and
    not everything.
    """
    return divergence_of_types(*(Counter(map(question_type, each)) for each in (questions, public)))


def divergence_of_types(ours: Counter[str], theirs: Counter[str]) -> float:
    """The same of types that are counted."""
    whole = theirs.total() + (len(TYPES) + 1) / 2
    shares = {kind: count / ours.total() for kind, count in ours.items()}
    return 100 * math.fsum(
        share * math.log(share * whole / (theirs[kind] + 0.5)) for kind, share in sorted(shares.items())
    )


def recall(predicted: Sequence[Iterable[str]], real: Sequence[Iterable[str]]) -> float:
    """The share of the phrases of real questions that were predicted for their evidence."""
    pairs = [(set(ours), set(theirs)) for ours, theirs in zip(predicted, real, strict=True)]
    return sum(len(ours & theirs) for ours, theirs in pairs) / sum(len(theirs) for _, theirs in pairs)
