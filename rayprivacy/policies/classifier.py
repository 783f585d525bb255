"""The classifier policy: words in a window that is surely of some domain are sensitive.

Source: Domain Private Transformers (2023), sequence classification: F = 1 where a window of words has p(domain) above a
threshold, for any domain. The paper fine-tunes RoBERTa on the private training text, and chooses the threshold by
attacks on private models; either makes F private. Here a logistic regression on TF-IDF features of single words is
trained on a file that the recipe declares public, and the threshold is a fixed number. ALL windows of a line
that reach it are hidden, overlaps included, where the authors' code leaves tails.

Training needs scikit-learn (extra `eval`). What comes of it is a table of numbers, rounded to 1e-6, whose digest names
the policy, so that a machine with other last bits hides the same words or is refused; workers need numpy alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.private import digest_json
from rayprivacy.corpus.phrases import words_of
from rayprivacy.policies.policy import MARK, Piece, Policy, Row, pieces_of

INVERSE_REGULARISATION = 100.0  # C: at scikit-learn's 1.0, 16 words are never surer than 0.96 of anything
_DIGITS = 6


@dataclass(frozen=True)
class WordScores:
    """A logistic regression on TF-IDF features of words; `vocabulary` has the row of each canonical word."""

    vocabulary: dict[str, int]
    idf: npt.NDArray[np.float64]  # [words]
    weights: npt.NDArray[np.float64]  # [words, domains]
    bias: npt.NDArray[np.float64]  # [domains]
    domains: tuple[str, ...]

    def probabilities(self, text: str) -> npt.NDArray[np.float64]:
        """How likely a text is of each domain, float64 [domains]."""
        rows = [self.vocabulary[word] for word in words_of(text) if word in self.vocabulary]
        distinct, counts = np.unique(np.array(rows, dtype=np.int64), return_counts=True)
        features = counts * self.idf[distinct]
        length = float(np.sqrt((features**2).sum()))
        scores = self.bias + (features / length if length else features) @ self.weights[distinct]
        odds = np.exp(scores - scores.max())
        return np.asarray(odds / odds.sum())

    @property
    def digest(self) -> str:
        """Names the table."""
        numbers = [part.tolist() for part in (self.idf, self.weights, self.bias)]
        return digest_json([sorted(self.vocabulary.items()), *numbers, list(self.domains)])


class ClassifierPolicy(Policy):
    """Hides every window of words that is of some domain with more than a threshold's probability.

    A line of fewer words is one window; words that are kept are in none.
    """

    def __init__(self, scores: WordScores, window: int, threshold: float, kept: Iterable[str] = ()) -> None:
        super().__init__(digest_json(["classifier-1", scores.digest, window, threshold]), kept)
        self._scores, self._window, self._threshold = scores, window, threshold

    def hides(self, words: str) -> bool:
        """Whether these words alone are surely of some domain."""
        return self._is_sure(words)

    def hits(self, pieces: Sequence[Piece], row: Row) -> set[int]:
        """The pieces of all windows that are surely of some domain."""
        found: set[int] = set()
        for window in self._windows(pieces):
            if self._is_sure(" ".join(pieces[at].word for at in window)):
                found.update(window)
        return found

    def domains(self, text: str) -> set[str]:
        """The domains that some window of a text, as it is, surely is of."""
        pieces, found = pieces_of(text), set()
        for window in self._windows(pieces):
            chances = self._scores.probabilities(" ".join(pieces[at].word for at in window))
            found |= {self._scores.domains[at] for at in np.flatnonzero(chances > self._threshold)}
        return found

    def _is_sure(self, text: str) -> bool:
        return float(self._scores.probabilities(text).max()) > self._threshold

    def _windows(self, pieces: Sequence[Piece]) -> Iterator[list[int]]:
        lines: list[list[int]] = [[]]
        for at, piece in enumerate(pieces):
            if "\n" in piece.gap:
                lines.append([])
            lines[-1].append(at)
        for line in lines:
            words = [at for at in line if pieces[at].word not in self.kept | {MARK}]
            for first in range(max(1, len(words) - self._window + 1)) if words else ():
                yield words[first : first + self._window]


def train_scores(rows: Sequence[tuple[str, str]], window: int) -> WordScores:
    """Train on public texts with their domains, cut into windows as long as those that will be judged."""
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        raise ConfigError(
            "policy.kind is 'classifier', which needs scikit-learn: run pip install 'rayprivacy[eval]'."
        ) from None
    pairs = []
    for text, domain in rows:
        words = text.split()
        pairs += [(" ".join(words[first : first + window]), domain) for first in range(0, len(words), window)]
    if len({domain for _, domain in pairs}) < 2:
        raise ConfigError("policy.train has text of fewer than two domains: give a file with several.")
    vectors = TfidfVectorizer(analyzer=words_of)
    features = vectors.fit_transform([part for part, _ in pairs])
    fitted = LogisticRegression(C=INVERSE_REGULARISATION, max_iter=1000).fit(features, [domain for _, domain in pairs])
    weights, bias = fitted.coef_.T, fitted.intercept_
    if len(fitted.classes_) == 2:  # scikit-learn keeps the scores of the second of two
        weights, bias = np.hstack([-weights / 2, weights / 2]), np.array([-bias[0] / 2, bias[0] / 2])
    return WordScores(
        vocabulary={str(word): int(row) for word, row in vectors.vocabulary_.items()},
        idf=np.round(vectors.idf_, _DIGITS),
        weights=np.round(weights, _DIGITS),
        bias=np.round(bias, _DIGITS),
        domains=tuple(map(str, fitted.classes_)),
    )
