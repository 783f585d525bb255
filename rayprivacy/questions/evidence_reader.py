"""The evidence reader: which sentence of a passage a question asks about.

The score of a sentence is a bilinear product of its vector with the question's, plus a weight for their idf overlap.
All of its parameters are one row of numbers, `theta`; what takes rows of them computes for many readers at once, since
the value of questions is learnt from the readers of many selections (`value.py`). It begins at zero: it knows nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rayprivacy.questions.overlap import Idf

Array = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]
WIDTH = 64  # of a sentence vector
_LENGTH = 2.0  # of a sentence vector: at 1 the overlap alone is learnt, at 3 a reader forgets it
_RATE, _BATCH = 0.3, 4
_ENOUGH = 5000  # sentences, from which directions are learnt


@dataclass(frozen=True)
class SentenceVectors:
    """Static vectors of texts: idf-weighted means of a model's token vectors, in the directions that vary most.

    Attributes:
        tokens: what each token adds, idf and directions included, [vocabulary, width].
        squares: the squared idf of each token.
        mean: of the sentences that directions were learnt from.
    """

    tokens: Array
    squares: Array
    mean: Array

    @staticmethod
    def of(table: Array, sentences: Sequence[Sequence[int]], width: int = WIDTH) -> "SentenceVectors":
        """Learn idf and directions from the token ids of released or public sentences.

        Args:
            table: the token vectors of a model, [vocabulary, any width].
            sentences: their token ids.
            width: of the vectors, at most that of the table.
        """
        idf = Idf.of(sentences)
        weights = np.array([idf[token] for token in range(len(table))], dtype=np.float32)
        whole = SentenceVectors((table - table.mean(axis=0)) * weights[:, None], weights**2, np.zeros(1, np.float32))
        known = whole._sums(sentences[:: 1 + len(sentences) // _ENOUGH])
        variances, directions = np.linalg.eigh(np.cov(known, rowvar=False))
        width = min(width, len(variances))
        scale = np.sqrt(np.maximum(variances[-width:], 1e-12))
        turned = (directions[:, -width:] / scale).astype(np.float32)
        return SentenceVectors(whole.tokens @ turned, whole.squares, known.mean(axis=0) @ turned)

    def __call__(self, texts: Sequence[Sequence[int]]) -> Array:
        """The vectors of texts, given as their token ids, all of one length, [texts, width]."""
        found = self._sums(texts) - self.mean
        return np.asarray(found * (_LENGTH / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-9)))

    def _sums(self, texts: Sequence[Sequence[int]]) -> Array:
        found = np.zeros((len(texts), self.tokens.shape[1]), dtype=np.float32)
        for row, ids in enumerate(texts):
            if len(ids):
                found[row] = self.tokens[ids].sum(axis=0) / np.sqrt(self.squares[ids].sum())
        return found


@dataclass(frozen=True)
class QuestionSet:
    """Questions among the sentences of their passages, as arrays; passages are filled up to the longest.

    Attributes:
        questions: their vectors, [questions, width].
        sentences: those of the sentences of each one's passage, [questions, most, width].
        overlaps: idf overlap of a question with each sentence, [questions, most].
        real: which sentences are no filling, [questions, most].
        evidence: the number of the sentence that was asked about, [questions].
    """

    questions: Array
    sentences: Array
    overlaps: Array
    real: npt.NDArray[np.bool_]
    evidence: Numbers

    @staticmethod
    def of(
        rows: Sequence[tuple[str, Sequence[str], int]], vectors: Callable[[Sequence[str]], Array], idf: Idf
    ) -> "QuestionSet":
        """The arrays of rows (question, sentences of its passage, which of them is the evidence)."""
        texts = sorted({text for question, sentences, _ in rows for text in (question, *sentences)})
        place, known = {text: number for number, text in enumerate(texts)}, vectors(texts)
        shape = len(rows), max((len(sentences) for _, sentences, _ in rows), default=0)
        chosen, overlaps = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        for row, (question, sentences, _) in enumerate(rows):
            chosen[row, : len(sentences)] = [place[sentence] for sentence in sentences]
            overlaps[row, : len(sentences)] = [idf.overlap(question, sentence) for sentence in sentences]
        real = np.arange(shape[1]) < np.array([[len(sentences)] for _, sentences, _ in rows])
        evidence = np.array([number for *_, number in rows], dtype=np.int64)
        return QuestionSet(known[[place[question] for question, *_ in rows]], known[chosen], overlaps, real, evidence)

    def __len__(self) -> int:
        return len(self.evidence)

    def __getitem__(self, rows: npt.NDArray[np.integer | np.bool_]) -> "QuestionSet":
        return QuestionSet(
            self.questions[rows], self.sentences[rows], self.overlaps[rows], self.real[rows], self.evidence[rows]
        )

    def about(self, evidence: Numbers) -> "QuestionSet":
        """The same questions, about other sentences."""
        return QuestionSet(self.questions, self.sentences, self.overlaps, self.real, evidence)


def beginning(width: int = WIDTH) -> Array:
    """The parameters of a reader that knows nothing."""
    return np.zeros(width * width + 1, dtype=np.float32)


def scores(theta: Array, asked: QuestionSet) -> Array:
    """What each of many readers thinks of each sentence, [readers, questions, most]; of filling, minus infinity."""
    width = asked.questions.shape[1]
    turned = asked.questions @ theta[:, :-1].reshape(-1, width, width)
    met = np.matmul(asked.sentences, turned.transpose(1, 2, 0)).transpose(2, 0, 1)
    return np.where(asked.real, met + theta[:, -1, None, None] * asked.overlaps, np.float32(-np.inf))


def probabilities(theta: Array, asked: QuestionSet) -> Array:
    """The same as probabilities that sum to 1 over the sentences of a passage."""
    found = scores(theta, asked)
    found = np.exp(found - found.max(axis=-1, keepdims=True))
    return np.asarray(found / found.sum(axis=-1, keepdims=True))


def gradients(theta: Array, asked: QuestionSet, weights: Array) -> Array:
    """Of each reader's loss, summed over questions by weights [readers, questions] and divided by their number."""
    pulls = probabilities(theta, asked)
    pulls[:, np.arange(len(asked)), asked.evidence] -= 1
    pulls *= (weights / len(asked))[..., None]
    moved = np.matmul(pulls.transpose(1, 0, 2), asked.sentences).transpose(1, 0, 2)
    product = np.matmul(asked.questions.T, moved).reshape(len(theta), -1)
    return np.concatenate([product, (pulls * asked.overlaps).sum(axis=(1, 2))[:, None]], axis=1)


def trained(theta: Array, asked: QuestionSet, dice: np.random.Generator, epochs: int = 1) -> Array:
    """One reader, trained on questions in an order that is drawn; `theta` stays as it is."""
    found, every = theta[None].copy(), np.ones((1, _BATCH), np.float32)
    for _ in range(epochs):
        order = dice.permutation(len(asked))
        for start in range(0, len(order), _BATCH):
            batch = asked[order[start : start + _BATCH]]
            found -= _RATE * gradients(found, batch, every[:, : len(batch)])
    return np.asarray(found[0])


def accuracies(theta: Array, asked: QuestionSet) -> npt.NDArray[np.float64]:
    """The share of questions for which each reader finds the evidence."""
    return np.asarray((scores(theta, asked).argmax(axis=-1) == asked.evidence).mean(axis=-1))


def losses(theta: Array, asked: QuestionSet) -> npt.NDArray[np.float64]:
    """The mean negative log-probability that each reader gives the evidence."""
    found = probabilities(theta, asked)[:, np.arange(len(asked)), asked.evidence]
    return np.asarray(-np.log(np.maximum(found, 1e-9)).mean(axis=-1, dtype=np.float64))
