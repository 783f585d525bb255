"""The value of questions: what they do for a reader, learnt by reinforcement (QVE; Yue et al., ACL 2022).

An iteration draws a batch of questions and several selections of it, each question taken with the probability that the
estimator gives it. A copy of the evidence reader is trained for some steps on each selection; what it then gains on
annotations is the reward. Selections that gain more than the others become likelier (REINFORCE, with the mean of the
*other* rewards as the baseline), and all readers begin at the same parameters again. All selections of an iteration
meet the same questions in the same order, and are computed at once.

Nothing here reads private text: questions are about released or public passages, and annotations are public.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rayprivacy.core.errors import RayPrivacyError
from rayprivacy.core.private import Seal
from rayprivacy.questions.estimator import Estimator, chances, features
from rayprivacy.questions.evidence_reader import Array, Numbers, QuestionSet, accuracies, gradients, losses
from rayprivacy.questions.settings import ValueConfig
from rayprivacy.work.mapping import in_actors

_SEAL = Seal(RayPrivacyError, "no value was written, run again with --resume")


@dataclass(frozen=True)
class Feedback:
    """What training on selections of written questions does for a reader.

    Attributes:
        start: the reader before it is trained.
        written: the questions that are selected from.
        annotated: what rewards are read from, and nothing else is.
        settings: of the value.
    """

    start: Array
    written: QuestionSet
    annotated: QuestionSet
    settings: ValueConfig

    def rewards(self, chosen: Numbers, taken: Array, order: Numbers) -> npt.NDArray[np.float64]:
        """The reward of each selection of a batch.

        Args:
            chosen: the rows of the batch.
            taken: 1 for what a selection takes of it, and 0 for the rest, [selections, batch].
            order: places in the batch that a reader meets at each step, [steps, inner batch].
        """
        return self._score(self.after(chosen, taken, order)) - self._before

    def after(self, chosen: Numbers, taken: Array, order: Numbers) -> Array:
        """The readers that were trained on the selections, each from the start, [selections, parameters]."""
        theta = np.repeat(self.start[None], len(taken), axis=0)
        batch = self.written[chosen]
        for places in order:
            theta -= self.settings.inner_rate * gradients(theta, batch[places], taken[:, places])
        return theta

    @cached_property
    def _before(self) -> npt.NDArray[np.float64]:
        return self._score(self.start[None])

    def _score(self, theta: Array) -> npt.NDArray[np.float64]:
        return accuracies(theta, self.annotated) if self.settings.reward == "em" else -losses(theta, self.annotated)


def direction(values: Array, taken: Array, rewards: npt.NDArray[np.float64]) -> Array:
    """Where values should go: an unbiased estimate of the gradient of the expected reward by log-odds, [batch].

    Args:
        values: log-odds of taking each question.
        taken: the selections that were drawn, [selections, batch].
        rewards: of each selection.
    """
    others = (rewards.sum() - rewards) / max(1, len(rewards) - 1)
    surprise = taken - chances(values)
    return np.asarray(((rewards - others)[:, None] * surprise).mean(axis=0, dtype=np.float32))


@dataclass(frozen=True)
class Learning:
    """All that an estimator is learnt from; `seen` are the features of the written questions."""

    feedback: Feedback
    seen: Array

    @staticmethod
    def of(feedback: Feedback, reader: Array) -> "Learning":
        """With features by a reader, the best one that there is without the written questions."""
        return Learning(feedback, features(feedback.written, reader))

    def __call__(self, number: int, seed: int) -> Array:
        """The values of all written questions, as log-odds, by the estimator of a number."""
        settings, dice = self.feedback.settings, np.random.default_rng([seed, number])
        estimator = Estimator(self.seen.shape[1], settings.learning_rate, dice)
        size = min(settings.batch, len(self.seen))
        for _ in range(settings.iterations):
            chosen = dice.choice(len(self.seen), size, replace=False)
            order = _order(size, settings, dice)
            values = estimator(self.seen[chosen])
            taken = (dice.random((settings.rollouts, size)) < chances(values)).astype(np.float32)
            rewards = self.feedback.rewards(chosen, taken, order)
            estimator.learn(self.seen[chosen], -direction(values, taken, rewards))
        return estimator(self.seen)


def _order(size: int, settings: ValueConfig, dice: np.random.Generator) -> Numbers:
    """Places of a batch, each once before any comes again."""
    wanted = settings.inner_steps * settings.inner_batch
    turns = [dice.permutation(size) for _ in range(-(-wanted // size))]
    return np.concatenate(turns)[:wanted].reshape(settings.inner_steps, settings.inner_batch)


def _same(learning: Learning) -> Callable[[int, int], Array]:
    return learning


def values(learning: Learning, seed: int, actors: int = 0) -> npt.NDArray[np.float64]:
    """The value of each written question: its share of the rank, as the mean of several estimators, from 0 to 1.

    Args:
        learning: what it is learnt from.
        seed: public.
        actors: how many estimators are learnt at a time, each in an actor; with 0, one after another in this process.
    """
    asked = [(number, seed) for number in range(learning.feedback.settings.estimators)]
    found = (
        dict(in_actors(_same, learning, asked, "learning the value of questions", _SEAL, actors))
        if actors
        else {number: learning(number, seed) for number, _ in asked}
    )
    return np.asarray(np.mean([ranks(found[number]) for number, _ in asked], axis=0))


def ranks(scores: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """The place of each score, from 0 for the lowest to 1 for the highest; of equal ones the later row is lower."""
    order = np.lexsort((-np.arange(len(scores)), scores))
    found = np.empty(len(scores))
    found[order] = np.arange(len(scores)) / max(1, len(scores) - 1)
    return found
