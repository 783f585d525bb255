"""Does synthetic text talk about the same things? Topics are clusters of real text; shares of two corpora are compared.

TF-IDF, a truncated SVD and k-means are fitted on real text alone, so that synthetic text cannot make topics of its own,
and its texts go to the nearest real topic. The cluster shares differ a little between any two samples: see the
reference.
"""

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import Normalizer

from rayprivacy.evaluation.distances import jensen_shannon, total_variation
from rayprivacy.evaluation.embeddings import PATTERN, reducer

TOPICS = 20
_DIMENSIONS = 50
_TEXTS_PER_TOPIC = 5
_STARTS = 4


class Topics:
    """Clusters of real text.

    Attributes:
        count: how many there are.
    """

    def __init__(self, real: list[str], seed: int = 0) -> None:
        words = TfidfVectorizer(token_pattern=PATTERN, sublinear_tf=True, stop_words=None)
        weighted = words.fit_transform(real)
        svd = reducer(weighted.shape, _DIMENSIONS, seed)
        self._space: Pipeline = make_pipeline(words, svd, Normalizer())
        points = Normalizer().transform(svd.fit_transform(weighted))
        distinct = len(np.unique(points.round(6), axis=0))
        self.count = max(1, min(TOPICS, len(real) // _TEXTS_PER_TOPIC, distinct))
        self._clusters = KMeans(self.count, n_init=_STARTS, random_state=seed).fit(points)

    def counts(self, texts: list[str]) -> npt.NDArray[np.int64]:
        """How many texts fall into each topic."""
        found = self._clusters.predict(self._space.transform(texts))
        return np.bincount(found, minlength=self.count)


def topic_distances(topics: Topics, real: list[str], synthetic: list[str]) -> dict[str, float]:
    """Total variation and Jensen-Shannon divergence (bits) of the shares of topics."""
    left, right = topics.counts(real), topics.counts(synthetic)
    return {"topic_total_variation": total_variation(left, right), "topic_jensen_shannon": jensen_shannon(left, right)}
