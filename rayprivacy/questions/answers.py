"""Answers compared as SQuAD compares them: exact match and F1 of words, without case, articles and punctuation.

Figures are shares from 0 to 1. Their intervals are over articles, since questions about one article are easy or hard
together.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

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
    named = range(len(predictions)) if articles is None else articles
    if not len(predictions) == len(references) == len(named) or not predictions:
        raise ConfigError(
            f"{len(predictions)} predictions were given with {len(references)} references and {len(named)} articles:"
            " give one of each for every question."
        )
    if not all(references):
        raise ConfigError("references has a question without a right answer: give at least one.")
    users = np.unique(np.array([str(each) for each in named]), return_inverse=True)[1]
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
