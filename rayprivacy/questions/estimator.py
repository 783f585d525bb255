"""The value estimator: a small network that looks at a question and its evidence, and says how much it is worth.

It has the layers of Yue et al. (ACL 2022), on sentence vectors in the place of an encoder: h' = tanh(W2 tanh(W1 x)),
h'' = tanh(W3 [h', what the evidence reader thinks]), and a value from h''. The value begins at the log-odds that the
reader gives the evidence. Two baselines teach it without any reward: annotations against the same questions about a
wrong sentence of their passage, as two classes or as a ranking.
"""

from collections.abc import Callable

import numpy as np

from rayprivacy.questions.evidence_reader import Array, QuestionSet, probabilities

_HIDDEN = 64
_SURE = 3.0  # log-odds at most, so that each question is taken, and left, now and then
_THOUGHTS = 2  # the last columns of features: idf overlap and log-odds
_DECAY, _SQUARED, _TINY = 0.9, 0.999, 1e-8  # of Adam (Kingma and Ba, 2015)
_MARGIN, _STEPS, _BATCH, _LEARNING = 0.15, 300, 80, 0.001


def features(asked: QuestionSet, theta: Array) -> Array:
    """What the estimator sees of questions and their evidence, by vectors and by a reader, [questions, columns]."""
    rows = np.arange(len(asked))
    evidence = asked.sentences[rows, asked.evidence]
    found = np.clip(probabilities(theta[None], asked)[0, rows, asked.evidence], 1e-6, 1 - 1e-6)
    thoughts = [asked.overlaps[rows, asked.evidence], np.clip(np.log(found / (1 - found)), -_SURE, _SURE)]
    return np.concatenate(
        [asked.questions, evidence, asked.questions * evidence, np.stack(thoughts, axis=1)], axis=1, dtype=np.float32
    )


def chances(values: Array) -> Array:
    """Log-odds as probabilities."""
    return np.asarray(1 / (1 + np.exp(-np.clip(values, -50, 50))))


class Estimator:
    """The network and its optimiser.

    Args:
        columns: of the features.
        learning_rate: of Adam.
        dice: for its first weights.
    """

    def __init__(self, columns: int, learning_rate: float, dice: np.random.Generator) -> None:
        sizes = [(columns, _HIDDEN), (_HIDDEN, _HIDDEN), (_HIDDEN + _THOUGHTS, _HIDDEN)]
        drawn = [dice.normal(0, rows**-0.5, (rows, width)).astype(np.float32) for rows, width in sizes]
        self._weights = [*drawn, np.zeros((_HIDDEN, 1), np.float32)]
        self._biases = [np.zeros(weight.shape[1], np.float32) for weight in self._weights]
        self._rate, self._steps = learning_rate, 0
        self._moments = [(np.zeros_like(each), np.zeros_like(each)) for each in self._all()]

    def __call__(self, seen: Array) -> Array:
        """The value of each row of features, as log-odds of taking its question."""
        return self._layers(seen)[-1][:, 0] + seen[:, -1]

    def learn(self, seen: Array, wrong: Array) -> None:
        """One step of Adam down a loss, of which the gradient by the values is given, [questions]."""
        self._steps += 1
        for each, gradient, (first, second) in zip(
            self._all(), self.gradients(seen, wrong), self._moments, strict=True
        ):
            first += (1 - _DECAY) * (gradient - first)
            second += (1 - _SQUARED) * (gradient**2 - second)
            mean, square = first / (1 - _DECAY**self._steps), second / (1 - _SQUARED**self._steps)
            each -= self._rate * mean / (np.sqrt(square) + _TINY)

    def gradients(self, seen: Array, wrong: Array) -> list[Array]:
        """The same by each weight of the layers, and then by each bias."""
        inputs = self._layers(seen)
        weights, biases = [], []
        back = wrong[:, None]
        for layer in (3, 2, 1, 0):
            weights.append(inputs[layer].T @ back)
            biases.append(back.sum(axis=0))
            if layer:
                passed = (back @ self._weights[layer].T)[:, :_HIDDEN]
                back = passed * (1 - inputs[layer][:, :_HIDDEN] ** 2)
        return [*weights[::-1], *biases[::-1]]

    def _all(self) -> list[Array]:
        return [*self._weights, *self._biases]

    def _layers(self, seen: Array) -> list[Array]:
        """What goes into each layer, and what comes out of the last."""
        found = [seen]
        for layer, (weight, bias) in enumerate(zip(self._weights, self._biases, strict=True)):
            out = found[-1] @ weight + bias
            out = out if layer == 3 else np.tanh(out)
            found.append(np.concatenate([out, seen[:, -_THOUGHTS:]], axis=1) if layer == 1 else out)
        return found


def misplaced(asked: QuestionSet, dice: np.random.Generator) -> QuestionSet:
    """The same questions about another sentence of their passage, drawn; those of one sentence are left out."""
    others = asked.real.copy()
    others[np.arange(len(asked)), asked.evidence] = False
    some = np.flatnonzero(others.any(axis=1))
    keys = np.where(others, dice.random(others.shape), -1)
    return asked.about(keys.argmax(axis=1))[some]


def as_classes(good: Array, bad: Array) -> tuple[Array, Array]:
    """Gradients of the cross-entropy of two classes, by the values of both."""
    return chances(good) - 1, chances(bad)


def as_ranking(good: Array, bad: Array) -> tuple[Array, Array]:
    """Gradients of max(0, margin + bad - good) of probabilities, by the values of both."""
    good, bad = chances(good), chances(bad)
    counts = (_MARGIN + bad - good > 0).astype(np.float32)
    return -counts * good * (1 - good), counts * bad * (1 - bad)


def contrasted(
    good: Array, bad: Array, loss: Callable[[Array, Array], tuple[Array, Array]], dice: np.random.Generator
) -> Estimator:
    """An estimator that was taught to tell good questions from bad ones, by their features."""
    found = Estimator(good.shape[1], _LEARNING, dice)
    for _ in range(_STEPS):
        one, other = (side[dice.integers(len(side), size=_BATCH)] for side in (good, bad))
        pulls = loss(found(one), found(other))
        found.learn(np.concatenate([one, other]), np.concatenate(pulls, dtype=np.float32) / np.float32(2 * _BATCH))
    return found
