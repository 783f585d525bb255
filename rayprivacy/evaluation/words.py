"""Topics, vocabulary, lengths, fluency and diversity, what a reader would notice; and classifiers, as rows.

Topics are clusters of real text, and the shares of two corpora are compared. TF-IDF, a truncated SVD and k-means are
fitted on real text alone, so that synthetic text cannot make topics of its own; its texts go to the nearest real topic.

Classifiers that are trained on synthetic text are compared with those of equally many real texts: the experiment of
tables 3.1 to 3.3 of Yue et al. (ACL 2023), with TF-IDF and logistic regression in place of RoBERTa. It runs in seconds,
and the difference between its two training sets is what counts. Both are tested on real texts of other users. A third
figure is the accuracy of always answering with the most frequent label of the real training texts.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import Normalizer

from rayprivacy.core.errors import CorpusError
from rayprivacy.evaluation.embeddings import PATTERN, reducer
from rayprivacy.evaluation.fidelity import jensen_shannon, total_variation
from rayprivacy.evaluation.figures import Better, Figure, FigureRow, mean_figure, paired
from rayprivacy.evaluation.language import diversity, length_summary, public_perplexity, shared_words, word_counts
from rayprivacy.evaluation.settings import EvaluationConfig
from rayprivacy.evaluation.texts import DrawnTexts, Texts, sample
from rayprivacy.models.backbone import Backbone

_MOST_WORDS = "at_max_words_share"
BETTER: Mapping[str, Better] = {
    "topic_total_variation": "lower",
    "topic_jensen_shannon": "lower",
    "word_type_overlap": "higher",
    "new_word_share": "near",
    "length_total_variation": "lower",
    "content_total_variation": "lower",
    **dict.fromkeys(("words_mean", _MOST_WORDS, "perplexity", "distinct_1", "distinct_2", "distinct_3"), "near"),
    **dict.fromkeys(("duplicate_share", "self_bleu_4"), "near"),
    **dict.fromkeys(("bleu_3", "bleu_4"), "higher"),
}
_STARTS = 4
CONTENT_WORDS, LEAST_USERS = 100, 3  # words that say what text is about, and users who wrote each at least
_LISTED = 10  # of them, the commonest, and as many of which most is missing
_PATTERN = re.compile(PATTERN)


def word_rows(drawn: DrawnTexts, base: Backbone | None, config: EvaluationConfig) -> list[FigureRow]:
    """Compare words; perplexity is measured where there is a base model."""
    target = drawn.real.take(drawn.target).texts
    topics, about = Topics(target, config.seed), _content(drawn.real.take(drawn.target))

    def of(texts: Texts) -> dict[str, Figure | float]:
        words = word_counts(texts.texts)
        found: dict[str, Figure | float] = {
            **topics.distances(target, texts.texts),
            **shared_words(target, texts.texts),
            "length_total_variation": total_variation(_bins(target), _bins(texts.texts)),
            "words_mean": mean_figure(words, texts.users, config.seed),
            **diversity(texts.texts, target, config.seed),
        }
        if about:
            held = _held(texts.texts, about)
            found["content_total_variation"] = total_variation(_held(target, about), held) if any(held) else 1.0
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


def content_words(drawn: DrawnTexts) -> list[dict[str, Any]]:
    """What real text is about: shares of texts that hold its commonest words without grammar, and those most missing.

    MAUVE and topics can look well where text is hardly about the subject: these words show it. Only words of several
    private users are listed; they are internal all the same.
    """
    real, synthetic = drawn.real.take(drawn.target), drawn.synthetic.take(drawn.compared)
    other = None if drawn.reference is None else drawn.real.take(drawn.reference)
    words, sides = _content(real), {"synthetic": synthetic.texts, "reference": (other or real).texts}
    held = {
        name: dict(zip(words, np.divide(_held(texts, words), len(texts)), strict=True)) for name, texts in sides.items()
    }
    missing = sorted(words[_LISTED:], key=lambda word: held["synthetic"][word] - held["reference"][word])[:_LISTED]
    return [
        {"word": word, **{name: round(float(shares[word]), 4) for name, shares in held.items()}}
        for word in [*words[:_LISTED], *missing]
    ]


def _content(real: Texts) -> list[str]:
    """The commonest words of real text without grammar, of several users each, the commonest first."""
    users: dict[str, set[Any]] = {}
    for text, user in zip(real.texts, real.users.tolist(), strict=True):
        for word in _words(text):
            users.setdefault(word, set()).add(user)
    counts = Counter(word for text in real.texts for word in _words(text) if len(users[word]) >= LEAST_USERS)
    return sorted(counts, key=lambda word: (-counts[word], word))[:CONTENT_WORDS]


def _held(texts: list[str], words: list[str]) -> list[int]:
    """How many texts hold each of some words."""
    counts = Counter(word for text in texts for word in _words(text))
    return [counts[word] for word in words]


def _words(text: str) -> set[str]:
    return {word for word in _PATTERN.findall(text.lower()) if len(word) > 2 and word not in ENGLISH_STOP_WORDS}


class Topics:
    """Clusters of real text, `count` of them."""

    def __init__(self, real: list[str], seed: int = 0) -> None:
        words = TfidfVectorizer(token_pattern=PATTERN, sublinear_tf=True, stop_words=None)
        weighted = words.fit_transform(real)
        svd = reducer(weighted.shape, 50, seed)
        self._space: Pipeline = make_pipeline(words, svd, Normalizer())
        points = Normalizer().transform(svd.fit_transform(weighted))
        distinct = len(np.unique(points.round(6), axis=0))
        self.count = max(1, min(20, len(real) // 5, distinct))
        self._clusters = KMeans(self.count, n_init=_STARTS, random_state=seed).fit(points)

    def counts(self, texts: list[str]) -> npt.NDArray[np.int64]:
        """How many texts fall into each topic."""
        found = self._clusters.predict(self._space.transform(texts))
        return np.bincount(found, minlength=self.count)

    def distances(self, real: list[str], texts: list[str]) -> dict[str, float]:
        """Total variation and Jensen-Shannon divergence (bits) of the shares of topics."""
        sides = self.counts(real), self.counts(texts)
        return {"topic_total_variation": total_variation(*sides), "topic_jensen_shannon": jensen_shannon(*sides)}


def downstream(
    real: Texts, synthetic: Texts, test: Texts, seed: int = 0
) -> tuple[dict[str, Figure], dict[str, Figure], dict[str, int]]:
    """Train on synthetic and on real text, test on other real text; texts without a label are left out, and a side
    without two labels is refused. Returns the figures of both, and how many texts trained and tested each.
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
    return classifier(texts.texts, texts.labels or ())


def classifier(texts: Sequence[str], labels: Sequence[str | None]) -> Pipeline:
    """A classifier by words and pairs of words, trained on these texts, which have two labels or more."""
    words = TfidfVectorizer(token_pattern=PATTERN, ngram_range=(1, 2), sublinear_tf=True)
    return make_pipeline(words, LogisticRegression(max_iter=1000)).fit(list(texts), list(labels))


def _figures(trained: Pipeline, test: Texts, seed: int) -> dict[str, Figure]:
    guessed, labels = trained.predict(test.texts), np.array(test.labels)
    # Over the labels of the test: one that only a training set has would count as a class with F1 0.
    macro = f1_score(labels, guessed, average="macro", labels=np.unique(labels), zero_division=0)
    return {"accuracy": mean_figure(guessed == labels, test.users, seed), "macro_f1": Figure(float(macro))}
