"""Values of questions: the gradient of the definition, rewards from annotations alone, readers that begin anew."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from toy_questions import WIDTH, toy_questions, toy_values

from rayprivacy.questions.estimator import Estimator, as_classes, as_ranking, chances, contrasted, features, misplaced
from rayprivacy.questions.evidence_reader import accuracies, beginning, gradients, losses
from rayprivacy.questions.value import direction, ranks, values

ITEMS = np.arange(6)
ALL = np.array([*product((0, 1), repeat=6)], dtype=np.float32)
ORDER = np.array([[0, 1, 2], [3, 4, 5], [2, 4, 0], [1, 5, 3]])


def _auc(scores, clean):
    good, bad = scores[clean][:, None], scores[~clean][None]
    return (good > bad).mean() + (good == bad).mean() / 2


@pytest.mark.parametrize("reward", ["em", "loss"])
@pytest.mark.parametrize("rollouts", [2, 8])
def test_the_drawn_gradient_is_that_of_all_64_selections(reward, rollouts):
    feedback = toy_values(reward=reward).learning.feedback
    rewards = feedback.rewards(ITEMS, ALL, ORDER)
    assert len(np.unique(rewards)) > 8
    dice = np.random.default_rng(1)
    log_odds = dice.normal(size=6).astype(np.float32)
    chance = chances(log_odds)
    weights = np.where(ALL == 1, chance, 1 - chance).prod(axis=1)
    exact = ((weights * rewards)[:, None] * (ALL - chance)).sum(axis=0)
    drawn = []
    for _ in range(20_000 // rollouts):
        taken = (dice.random((rollouts, 6)) < chance).astype(np.float32)
        own = rewards[(taken @ 2.0 ** np.arange(5, -1, -1)).astype(int)]
        drawn.append(direction(log_odds, taken, own))
    error = np.std(drawn, axis=0) / len(drawn) ** 0.5
    assert (np.abs(np.mean(drawn, axis=0) - exact) < 3 * error).all()
    assert np.abs(exact).max() > 20 * error.min(), "the test could not tell half of the gradient from all of it"


def test_every_iteration_begins_at_the_same_reader():
    feedback = toy_values().learning.feedback
    kept = feedback.start.copy()
    for taken in (ALL, ALL[-1:]):
        first = feedback.rewards(ITEMS, taken, ORDER)
        assert feedback.start.tobytes() == kept.tobytes()
        assert (feedback.rewards(ITEMS, taken, ORDER) == first).all()
    assert (feedback.after(ITEMS, ALL[-1:], ORDER) != kept).any()


def test_an_empty_selection_leaves_the_reader_as_it_is():
    feedback = toy_values().learning.feedback
    after = feedback.after(ITEMS, ALL, ORDER)
    assert after[0].tobytes() == feedback.start.tobytes()
    assert (after[1:] != feedback.start).any(axis=1).all()
    assert feedback.rewards(ITEMS, ALL, ORDER)[0] == 0


def test_a_selection_is_trained_on_alone():
    """Whatever else is selected from the batch beside it, and whatever it leaves out."""
    feedback = toy_values().learning.feedback
    after = feedback.after(ITEMS, ALL, ORDER)
    np.testing.assert_allclose(feedback.after(ITEMS, ALL[9:10], ORDER)[0], after[9], rtol=1e-5, atol=1e-6)
    left = feedback.written.about((feedback.written.evidence + 1) % feedback.written.real.sum(axis=1))
    evidence = np.where(np.arange(len(left)) < 5, left.evidence, feedback.written.evidence)  # row 5 is what it takes
    changed = replace(feedback, written=feedback.written.about(evidence))
    assert changed.after(ITEMS, ALL[1:2], ORDER).tobytes() == feedback.after(ITEMS, ALL[1:2], ORDER).tobytes()


@pytest.mark.parametrize("reward", ["em", "loss"])
def test_the_reward_is_read_from_annotations_alone(reward):
    feedback = toy_values(reward=reward).learning.feedback
    figure = accuracies if reward == "em" else lambda theta, asked: -losses(theta, asked)
    gained = figure(feedback.after(ITEMS, ALL, ORDER), feedback.annotated) - figure(
        feedback.start[None], feedback.annotated
    )
    assert (feedback.rewards(ITEMS, ALL, ORDER) == gained).all()
    swapped = feedback.written.about((feedback.written.evidence + 1) % feedback.written.real.sum(axis=1))
    other = replace(feedback, written=swapped)
    assert other.rewards(ITEMS, ALL, ORDER)[0] == gained[0] == pytest.approx(0, abs=1e-6)
    assert (other.rewards(ITEMS, ALL, ORDER)[1:] != gained[1:]).any(), "it was trained on something else"


def test_values_find_the_questions_that_serve():
    toy = toy_values(seed=1, number=80, iterations=300, batch=40, learning_rate=0.003, estimators=2, reward="loss")
    begun = _auc(toy.learning.seen[:, -1], toy.clean)
    learnt = _auc(values(toy.learning, 0), toy.clean)
    assert begun == pytest.approx(0.5, abs=0.1), "a reader that knows nothing gives nothing to begin with"
    assert learnt > 0.75


def test_values_are_means_of_ranks_and_depend_on_the_seed():
    toy = toy_values(iterations=3, estimators=2)
    found = values(toy.learning, 5)
    assert (found == np.mean([ranks(toy.learning(number, 5)) for number in (0, 1)], axis=0)).all()
    assert (found == values(toy.learning, 5)).all()
    assert (found != values(toy.learning, 6)).any()
    assert ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == pytest.approx([1, 0, 2 / 3, 1 / 3])


def test_a_batch_larger_than_what_there_is_takes_it_all():
    toy = toy_values(number=10, iterations=2, batch=80, inner_steps=20, rollouts=1, estimators=1)
    assert sorted(values(toy.learning, 0)) == pytest.approx([place / 9 for place in range(10)])


def test_the_readers_gradient_is_that_of_its_loss():
    dice = np.random.default_rng(0)
    asked, theta = toy_questions(dice, 5), dice.normal(size=(2, WIDTH * WIDTH + 1))
    found = gradients(theta, asked, np.ones((2, 5)))
    for place in (0, 7, WIDTH * WIDTH):
        step = np.zeros_like(theta)
        step[:, place] = 1e-5
        slope = (losses(theta + step, asked) - losses(theta - step, asked)) / 2e-5
        np.testing.assert_allclose(found[:, place], slope, rtol=1e-3, atol=1e-6)


def test_the_estimators_gradient_is_that_of_its_values():
    dice = np.random.default_rng(0)
    seen = dice.normal(size=(7, 9)).astype(np.float32)
    estimator = Estimator(9, 0.01, dice)
    for _ in range(20):  # its last layer begins at zero
        estimator.learn(seen, dice.normal(size=7).astype(np.float32))
    wrong = dice.normal(size=7).astype(np.float32)
    for gradient, weight in zip(estimator.gradients(seen, wrong), estimator._all(), strict=True):
        place = tuple(dice.integers(weight.shape))
        ends = []
        kept = weight[place]
        for step in (1e-2, -1e-2):
            weight[place] = kept + step
            ends.append(float(wrong @ estimator(seen)))
        weight[place] = kept
        assert gradient[place] == pytest.approx((ends[0] - ends[1]) / 2e-2, rel=0.03, abs=2e-3)


def test_values_begin_at_the_readers_log_odds():
    toy = toy_values()
    estimator = Estimator(toy.learning.seen.shape[1], 0.01, np.random.default_rng(0))
    assert (estimator(toy.learning.seen) == toy.learning.seen[:, -1]).all()
    assert np.abs(toy.learning.seen[:, -1]).max() <= 3


@pytest.mark.parametrize("loss", [as_classes, as_ranking])
def test_baselines_tell_annotations_from_misplaced_ones(loss):
    toy, dice = toy_values(), np.random.default_rng(0)
    annotated, reader = toy.learning.feedback.annotated, beginning(WIDTH)
    bad = misplaced(annotated, dice)
    assert (bad.evidence != annotated.evidence).all()
    assert bad.real[np.arange(len(bad)), bad.evidence].all()
    estimator = contrasted(features(annotated, reader), features(bad, reader), loss, dice)
    assert _auc(estimator(toy.learning.seen), toy.clean) > 0.7
