"""BM25 over passages: which of them have the words of a query, rare words first (Robertson and Zaragoza, 2009).

By bm25s with Snowball's stems of English and without its stop words. Document frequencies are those of the passages
that are given: released or public ones, never private ones, whose frequencies would be private statistics.
"""

import logging
import re
from collections.abc import Iterable, Sequence

import bm25s
import numpy as np
import numpy.typing as npt
import Stemmer
from bm25s.stopwords import STOPWORDS_EN

from rayprivacy.questions.passages import Span

logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to say that it begins
_WORD = re.compile(r"\w+")
_STEMMER = Stemmer.Stemmer("english")


def stems(texts: Iterable[str]) -> list[list[str]]:
    """The stems of each text, without stop words and single letters."""
    found: list[list[str]] = bm25s.tokenize(
        [*texts], stopwords="en", stemmer=_STEMMER, return_ids=False, show_progress=False
    )
    return found


def placed_stems(text: str) -> list[tuple[str, Span]]:
    """The stems of a text with the places of their words, without stop words.

    >>> placed_stems("the early trains")
    [('earli', (4, 9)), ('train', (10, 16))]
    """
    words = [(match[0].lower(), match.span()) for match in _WORD.finditer(text)]
    return [(_STEMMER.stemWord(word), span) for word, span in words if word not in STOPWORDS_EN]


class Bm25:
    """The index of some passages."""

    def __init__(self, passages: Iterable[str]) -> None:
        found = stems(passages)
        self.size = len(found)
        self._index = bm25s.BM25() if any(found) else None  # it takes no passages without any words
        if self._index is not None:
            self._index.index(found, show_progress=False)

    def scores(self, query: str) -> npt.NDArray[np.float32]:
        """The score of each passage, [passages]; 0 for one that has no word of the query."""
        (words,) = stems([query])
        if self._index is None or not words:
            return np.zeros(self.size, dtype=np.float32)
        scores: npt.NDArray[np.float32] = self._index.get_scores(words)
        return scores

    def shares(self, queries: Sequence[str]) -> npt.NDArray[np.float32]:
        """The score of each passage for each query, as a share of the best one's, [queries, passages]."""
        scores = np.stack([self.scores(query) for query in queries])
        return np.asarray(scores / np.maximum(scores.max(axis=1, keepdims=True, initial=0), 1e-9))

    def ranked(self, query: str, among: Sequence[int] | None = None) -> list[int]:
        """Passages that share a word with a query, the best first; of equal scores the first passage."""
        scores = self.scores(query)
        chosen = np.arange(self.size) if among is None else np.array(among, dtype=np.int64)
        order = chosen[np.argsort(-scores[chosen], kind="stable")]
        return [place for place in order.tolist() if scores[place] > 0]
