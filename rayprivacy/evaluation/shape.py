"""The shape of a set of texts: partitions by topic, made by clusters of public texts, by length, by public words."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans

from rayprivacy.core.private import digest_array, digest_json
from rayprivacy.corpus.content import STOP_WORDS, content_words
from rayprivacy.models.sentences import SentenceModel

# Words from which on a text is of the next length; the last is open. About equal steps of the logarithm.
LENGTH_EDGES = (2, 3, 4, 6, 8, 10, 13, 16, 20, 25, 32, 40, 60, 100)
LENGTHS = len(LENGTH_EDGES) + 1
_STARTS, _SEED = 4, 0
Cells = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """A partition of texts by topic, whose centres are float32 [topics, width] of length 1, and one by length.

    With `words`, which are public and the commonest first, there is one more: by the rarest of them in a text, or none.
    """

    centres: npt.NDArray[np.float32]
    words: tuple[str, ...] = ()

    @staticmethod
    def of(texts: list[str], model: SentenceModel, topics: int) -> "Shape":
        """The topics of public texts; fewer than `topics` where there are fewer different texts."""
        distinct = list(dict.fromkeys(texts))
        vectors = model.vectors(distinct)
        clusters = KMeans(min(topics, len(distinct)), n_init=_STARTS, random_state=_SEED).fit(vectors)
        centres = clusters.cluster_centers_
        return Shape((centres / np.linalg.norm(centres, axis=1, keepdims=True)).astype(np.float32))

    @property
    def blocks(self) -> tuple[int, ...]:
        """How many topics and lengths there are; and words, with none of them."""
        return len(self.centres), LENGTHS, *((len(self.words) + 1,) if self.words else ())

    def cells(self, texts: list[str], model: SentenceModel) -> Cells:
        """The topic and the length of each text, and its word, counted from 0 each, [texts, blocks]."""
        found = [self.topics(model.vectors(texts)), lengths(texts)]
        return np.column_stack([*found, rarest(texts, self.words)] if self.words else found)

    def topics(self, vectors: npt.NDArray[np.float64]) -> Cells:
        """The topic of each vector, counted from 0."""
        return np.asarray((vectors.astype(np.float32) @ self.centres.T).argmax(axis=1), np.int64)

    def question(self, model: SentenceModel) -> str:
        """Digest of what a text is asked: its length, its topic, the nearest by what a model sees in it, its word."""
        words = [[*self.words], sorted(STOP_WORDS)] if self.words else []
        return digest_json([digest_array(self.centres), list(LENGTH_EDGES), model.digest, *words])


def lengths(texts: list[str]) -> Cells:
    """The length of each text as the number of its bin, from 0.

    >>> lengths(["one", "one two", "word " * 300]).tolist()
    [0, 1, 14]
    """
    words = [len(text.split()) for text in texts]
    return np.searchsorted(LENGTH_EDGES, words, side="right").astype(np.int64)


def rarest(texts: list[str], words: Sequence[str]) -> Cells:
    """The last of these words that each text holds, counted from 1, or 0 where it holds none.

    >>> rarest(["Haha, good soup", "good", "no"], ["good", "soup"]).tolist()
    [2, 1, 0]
    """
    place = {word: number for number, word in enumerate(words, start=1)}
    return np.array([max((place.get(word, 0) for word in content_words(text)), default=0) for text in texts], np.int64)
