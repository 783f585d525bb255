"""Topics, vocabulary, lengths, fluency and diversity: what a reader would notice, as rows of the evaluation."""

from collections.abc import Mapping

import numpy as np

from rayprivacy.evaluation.bootstrap import Figure, mean_figure
from rayprivacy.evaluation.distances import total_variation
from rayprivacy.evaluation.drawn import Drawn
from rayprivacy.evaluation.fluency import diversity, public_perplexity
from rayprivacy.evaluation.lengths import length_summary, word_counts
from rayprivacy.evaluation.rows import Better, Row, paired
from rayprivacy.evaluation.settings import EvaluationConfig
from rayprivacy.evaluation.texts import Texts
from rayprivacy.evaluation.topics import Topics, topic_distances
from rayprivacy.evaluation.vocabulary import shared_words
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
