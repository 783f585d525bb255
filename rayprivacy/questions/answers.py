"""Answers compared as SQuAD compares them: exact match and F1 of words, without case, articles and punctuation.

And rankings of passages: how often a right one is among the first k, and how high the first of them stands.

Figures are shares from 0 to 1. Their intervals are over articles, since questions about one article are easy or hard
together.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial

import numpy as np
import numpy.typing as npt

from rayprivacy.core.errors import ConfigError
from rayprivacy.evaluation.figures import Figure, mean_figure

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(answer: str) -> str:
    """An answer in lower case, without punctuation, articles and the space that is left by them.

    >>> normalised("The  'Denver' Broncos.")
    'denver broncos'
    """
    return " ".join(_ARTICLE.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def holds(text: str, answer: str) -> bool:
    """Whether an answer's words stand in a text, both normalised; an answer without words stands in every text."""
    return f" {normalised(answer)} " in f" {normalised(text)} " or not normalised(answer)


def exact_match(prediction: str, reference: str) -> float:
    """1 if two answers are equal once they are normalised, else 0."""
    return float(normalised(prediction) == normalised(reference))


def f1(prediction: str, reference: str) -> float:
    """The harmonic mean of precision and recall of an answer's words, each counted as often as it occurs.

    >>> f1("the New New York", "New York City"), f1("Boston", "New York")
    (0.6666666666666666, 0.0)
    """
    ours, theirs = normalised(prediction).split(), normalised(reference).split()
    common = (Counter(ours) & Counter(theirs)).total()
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def score_answers(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    articles: Sequence[str] | None = None,
    seed: int = 0,
) -> dict[str, Figure]:
    """`exact_match` and `f1` of predicted answers, each by the best of its references.

    Args:
        predictions: one answer for each question.
        references: the right answers to each question, at least one.
        articles: which article each question is about, over which intervals are taken; without them each is its own.
        seed: public; of the intervals.

    Raises:
        ConfigError: the lists differ in length, or a question has no reference.
    """
    users = _users(len(predictions), len(references), articles, "predictions")
    if not all(references):
        raise ConfigError("references has a question without a right answer: give at least one.")
    return {
        measure.__name__: mean_figure(
            [
                max(measure(prediction, right) for right in all_right)
                for prediction, all_right in zip(predictions, references, strict=True)
            ],
            users,
            seed,
        )
        for measure in (exact_match, f1)
    }


def hit(ranking: Sequence[object], right: Set[object], most: int) -> float:
    """1 if one of the first `most` of a ranking is right, else 0."""
    return float(any(each in right for each in ranking[:most]))


def reciprocal_rank(ranking: Sequence[object], right: Set[object], most: int = 10) -> float:
    """One over the place of the first that is right; 0 where none of the first `most` is.

    >>> reciprocal_rank("abc", {"b", "c"}), reciprocal_rank("abc", {"c"}, most=2)
    (0.5, 0.0)
    """
    return next((1 / place for place, each in enumerate(ranking[:most], 1) if each in right), 0.0)


def ndcg(ranking: Sequence[object], right: Set[object], most: int = 10) -> float:
    """The gain of what is right among the first `most`, each by its place, as a share of what could be had."""
    gains = [1 / math.log2(place + 1) for place in range(1, most + 1)]
    best = math.fsum(gains[: len(right)])
    return math.fsum(gain for gain, each in zip(gains, ranking, strict=False) if each in right) / best if best else 0.0


RANKED: Mapping[str, Callable[[Sequence[object], Set[object]], float]] = {
    **{f"top_{most}": partial(hit, most=most) for most in (1, 5, 20)},
    "mrr_10": reciprocal_rank,
    "ndcg_10": ndcg,
}


def score_rankings(
    rankings: Sequence[Sequence[object]],
    right: Sequence[Set[object]],
    articles: Sequence[str] | None = None,
    seed: int = 0,
) -> dict[str, Figure]:
    """Top-1, top-5, top-20, MRR@10 and nDCG@10 of rankings of passages, the best first.

    Args:
        rankings: of each question, passages as the numbers or names that `right` has of them.
        right: the passages that answer each question.
        articles: as in `score_answers`.
        seed: public; of the intervals.
    """
    users = _users(len(rankings), len(right), articles, "rankings")
    return {
        name: mean_figure([measure(*pair) for pair in zip(rankings, right, strict=True)], users, seed)
        for name, measure in RANKED.items()
    }


def _users(given: int, right: int, articles: Sequence[str] | None, what: str) -> npt.NDArray[np.int64]:
    """Numbers of articles; without them each question is its own."""
    named = range(given) if articles is None else articles
    if not given == right == len(named) or not given:
        raise ConfigError(
            f"{given} {what} were given with {right} references and {len(named)} articles: give one of each for every"
            " question."
        )
    return np.unique(np.array([str(each) for each in named]), return_inverse=True)[1]
