"""Classifiers trained on synthetic text, compared with classifiers trained on equally many real texts.

This is the experiment of tables 3.1 to 3.3 of Yue et al. (ACL 2023), with TF-IDF and logistic regression in place of
RoBERTa: it runs in seconds, and the difference between its two training sets is what counts. Both classifiers are
tested on real texts of other users; they see equally many training texts. A third figure is what one gets for always
answering with the most frequent label of the real training texts.
"""

from collections import Counter

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.pipeline import Pipeline, make_pipeline

from rayprivacy.core.errors import CorpusError
from rayprivacy.evaluation.embeddings import PATTERN
from rayprivacy.evaluation.figures import Figure, mean_figure
from rayprivacy.evaluation.texts import Texts, sample


def downstream(
    real: Texts, synthetic: Texts, test: Texts, seed: int = 0
) -> tuple[dict[str, Figure], dict[str, Figure], dict[str, int]]:
    """Train on synthetic and on real text, test on other real text; texts without a label are left out.

    Returns the figures of training on synthetic text, those of training on real text with the accuracy of the most
    frequent label, and how many texts trained and tested each. A side without two labels to learn is refused.
    """
    sides = {"--real": labelled(real), "--synthetic": labelled(synthetic)}
    tested = labelled(test)
    size = min(map(len, sides.values()))
    drawn = {option: side.take(sample(len(side), size, seed)) for option, side in sides.items()}
    for option, side in (*sides.items(), *drawn.items()):  # a rare label may be in none of the drawn texts
        if len(set(side.labels or ())) < 2:
            raise CorpusError(f"--label names a column with fewer than two labels in {option}: choose another column.")
    if not len(tested):
        raise CorpusError("--label names a column without labels in the real texts to test on: choose another column.")
    ours, theirs = (_figures(_fit(drawn[option]), tested, seed) for option in ("--synthetic", "--real"))
    frequent = Counter(sides["--real"].labels or ()).most_common(1)[0][0]
    guess = np.array([label == frequent for label in tested.labels or ()])
    theirs["most_frequent_label_accuracy"] = mean_figure(guess, tested.users, seed)
    return ours, theirs, {"trained_on_texts": size, "tested_on_texts": len(tested)}


def labelled(texts: Texts) -> Texts:
    """The texts that have a label."""
    return texts.take(np.flatnonzero([label is not None for label in texts.labels or ()]))


def _fit(texts: Texts) -> Pipeline:
    words = TfidfVectorizer(token_pattern=PATTERN, ngram_range=(1, 2), sublinear_tf=True)
    return make_pipeline(words, LogisticRegression(max_iter=1000)).fit(texts.texts, texts.labels)


def _figures(trained: Pipeline, test: Texts, seed: int) -> dict[str, Figure]:
    guessed, labels = trained.predict(test.texts), np.array(test.labels)
    # Over the labels of the test: one that only a training set has would count as a class with F1 0.
    macro = f1_score(labels, guessed, average="macro", labels=np.unique(labels), zero_division=0)
    return {"accuracy": mean_figure(guessed == labels, test.users, seed), "macro_f1": Figure(float(macro))}
