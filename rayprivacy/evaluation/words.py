"""Topics, vocabulary, lengths, fluency and diversity: what a reader would notice, as rows of the evaluation.

Topics are clusters of real text, and the shares of two corpora are compared. TF-IDF, a truncated SVD and k-means are
fitted on real text alone, so that synthetic text cannot make topics of its own; its texts go to the nearest real topic.
The cluster shares differ a little between any two samples: see the reference.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import Normalizer

from rayprivacy.evaluation.distances import jensen_shannon, total_variation
from rayprivacy.evaluation.embeddings import PATTERN, reducer
from rayprivacy.evaluation.figures import Better, Figure, Row, mean_figure, paired
from rayprivacy.evaluation.fluency import diversity, public_perplexity
from rayprivacy.evaluation.language import length_summary, shared_words, word_counts
from rayprivacy.evaluation.settings import EvaluationConfig
from rayprivacy.evaluation.texts import Drawn, Texts
from rayprivacy.models.backbone import Backbone

_MOST_WORDS = "at_max_words_share"
BETTER: Mapping[str, Better] = {
    "topic_total_variation": "lower",
    "topic_jensen_shannon": "lower",
    "word_type_overlap": "higher",
    "new_word_share": "near",
    "length_total_variation": "lower",
    "words_mean": "near",
    _MOST_WORDS: "near",
    "perplexity": "near",
    "distinct_1": "near",
    "distinct_2": "near",
    "distinct_3": "near",
    "duplicate_share": "near",
    "self_bleu_4": "near",
    "bleu_3": "higher",
    "bleu_4": "higher",
}
TOPICS = 20
_DIMENSIONS = 50
_TEXTS_PER_TOPIC = 5
_STARTS = 4


def word_rows(drawn: Drawn, base: Backbone | None, config: EvaluationConfig) -> list[Row]:
    """Compare words; perplexity is measured where there is a base model."""
    target = drawn.real.take(drawn.target).texts
    topics = Topics(target, config.seed)

    def of(texts: Texts) -> dict[str, Figure | float]:
        words = word_counts(texts.texts)
        found: dict[str, Figure | float] = {
            **topic_distances(topics, target, texts.texts),
            **shared_words(target, texts.texts),
            "length_total_variation": total_variation(_bins(target), _bins(texts.texts)),
            "words_mean": mean_figure(words, texts.users, config.seed),
            **diversity(texts.texts, target, config.seed),
        }
        if config.max_words is not None:
            found[_MOST_WORDS] = mean_figure(np.array(words) >= config.max_words, texts.users, config.seed)
        if base is not None:
            found["perplexity"] = public_perplexity(base, texts.texts, config.seed)
        return found

    other = None if drawn.reference is None else of(drawn.real.take(drawn.reference))
    return paired("words", BETTER, of(drawn.synthetic.take(drawn.compared)), other)


def _bins(texts: list[str]) -> list[int]:
    counts: list[int] = length_summary(texts)["histogram"]["counts"]
    return counts


class Topics:
    """Clusters of real text, `count` of them."""

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
