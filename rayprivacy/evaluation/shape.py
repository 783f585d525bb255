"""The shape of a set of texts: a partition by topic, made by clusters of public texts, and one by length in words."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans

from rayprivacy.core.private import digest_array, digest_json
from rayprivacy.models.sentences import SentenceModel

# Words from which on a text is of the next length; the last is open. About equal steps of the logarithm.
LENGTH_EDGES = (2, 3, 4, 6, 8, 10, 13, 16, 20, 25, 32, 40, 60, 100)
LENGTHS = len(LENGTH_EDGES) + 1
_STARTS, _SEED = 4, 0
Cells = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """A partition of texts by topic, whose centres are float32 [topics, width] of length 1, and one by length."""

    centres: npt.NDArray[np.float32]

    @staticmethod
    def of(texts: list[str], model: SentenceModel, topics: int) -> "Shape":
        """The topics of public texts; fewer than `topics` where there are fewer different texts."""
        distinct = list(dict.fromkeys(texts))
        vectors = model.vectors(distinct)
        clusters = KMeans(min(topics, len(distinct)), n_init=_STARTS, random_state=_SEED).fit(vectors)
        centres = clusters.cluster_centers_
        return Shape((centres / np.linalg.norm(centres, axis=1, keepdims=True)).astype(np.float32))

    @property
    def blocks(self) -> tuple[int, int]:
        """How many topics and lengths there are."""
        return len(self.centres), LENGTHS

    def cells(self, texts: list[str], model: SentenceModel) -> Cells:
        """The topic and the length of each text, counted from 0 each, [texts, 2]."""
        return np.column_stack([self.topics(model.vectors(texts)), lengths(texts)])

    def topics(self, vectors: npt.NDArray[np.float64]) -> Cells:
        """The topic of each vector, counted from 0."""
        return np.asarray((vectors.astype(np.float32) @ self.centres.T).argmax(axis=1), np.int64)

    def question(self, model: SentenceModel) -> str:
        """Digest of what a text is asked: its length, and which topic it is nearest to by what a model sees in it."""
        return digest_json([digest_array(self.centres), list(LENGTH_EDGES), model.digest])


def lengths(texts: list[str]) -> Cells:
    """The length of each text as the number of its bin, from 0.

    >>> lengths(["one", "one two", "word " * 300]).tolist()
    [0, 1, 14]
    """
    words = [len(text.split()) for text in texts]
    return np.searchsorted(LENGTH_EDGES, words, side="right").astype(np.int64)
