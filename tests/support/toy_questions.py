"""Small sets of questions as arrays, in which the evidence lies near its question, and a part of it is misplaced."""

from dataclasses import dataclass

import numpy as np

from rayprivacy.questions.evidence_reader import QuestionSet, beginning, trained
from rayprivacy.questions.settings import ValueConfig
from rayprivacy.questions.value import Feedback, Learning

WIDTH = 6


def toy_questions(dice, number, most=4):
    """Questions whose evidence has a like vector, and more overlap than the other sentences."""
    sentences = dice.normal(size=(number, most, WIDTH)).astype(np.float32)
    real = np.arange(most) < dice.integers(2, most + 1, size=(number, 1))
    evidence = (dice.random(number) * real.sum(axis=1)).astype(np.int64)
    rows = np.arange(number)
    questions = sentences[rows, evidence] + dice.normal(0, 0.7, (number, WIDTH)).astype(np.float32)
    overlaps = dice.random((number, most)).astype(np.float32) * 0.4
    overlaps[rows, evidence] += 0.2
    return QuestionSet(questions, sentences * real[..., None], overlaps * real, real, evidence)


@dataclass
class Toy:
    """A reader of a few questions, written questions of which `clean` are about their evidence, and annotations."""

    learning: Learning
    clean: np.ndarray


def toy_values(seed=0, number=300, **settings):
    """What values are learnt from, with half of the written questions misplaced."""
    dice = np.random.default_rng(seed)
    written, annotated = toy_questions(dice, number), toy_questions(dice, 150)
    start = trained(beginning(WIDTH), toy_questions(dice, 40), dice)
    clean = dice.random(number) < 0.5
    others = written.real.copy()
    others[np.arange(number), written.evidence] = False
    wrong = np.where(others, dice.random(others.shape), -1).argmax(axis=1)
    written = written.about(np.where(clean, written.evidence, wrong))
    feedback = Feedback(start, written, annotated, ValueConfig(inner_rate=0.3, **settings))
    return Toy(Learning.of(feedback, beginning(WIDTH)), clean)
