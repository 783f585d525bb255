"""The one-run audit against mechanisms whose epsilon is known: randomised response, with and without a delta."""

import math

import numpy as np
import pytest
from one_run import Guesses, coins
from scipy import stats

from rayprivacy.core.errors import ConfigError

CANARIES = 2000


def _guesses(scores: np.ndarray, included: np.ndarray, guessed_in: int, guessed_out: int) -> Guesses:
    """Guesses of "in" for the highest scores and of "out" for the lowest."""
    order = np.argsort(-scores, kind="stable")
    right = included[order[:guessed_in]].sum() + (~included[order[len(scores) - guessed_out :]]).sum()
    return Guesses(len(scores), guessed_in + guessed_out, int(right))


def _randomised_response(included: np.ndarray, epsilon: float, delta: float, draw: np.random.Generator) -> np.ndarray:
    """A score for each coin: the coin itself with chance delta, else a truthful answer at epsilon."""
    truthful = draw.random(len(included)) < 1 / (1 + math.exp(-epsilon))
    known = draw.random(len(included)) < delta
    answers = np.where(included == truthful, 1.0, -1.0)
    return np.where(known, np.where(included, 2.0, -2.0), answers)


def _bounds(epsilon: float, delta: float, runs: int = 100) -> list[float]:
    found = []
    for seed in range(runs):
        included = coins(CANARIES, seed)
        scores = _randomised_response(included, epsilon, delta, np.random.default_rng(10_000 + seed))
        found.append(_guesses(scores, included, CANARIES // 2, CANARIES // 2).epsilon(delta, 0.95))
    return found


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (2.0, 0.0), (2.0, 1e-5)])
def test_the_bound_rarely_exceeds_the_true_epsilon_and_comes_near(epsilon: float, delta: float) -> None:
    found = _bounds(epsilon, delta)
    assert sum(bound > epsilon for bound in found) <= stats.binom.isf(1e-4, len(found), 0.05)
    assert np.median(found) > 0.65 * epsilon


def test_a_claim_that_is_too_small_is_refuted() -> None:
    assert sum(bound > 1.0 for bound in _bounds(2.0, 0.0, runs=10)) >= 9


def test_without_delta_the_p_value_is_the_exact_tail_of_randomised_response() -> None:
    draw, truthful = np.random.default_rng(1), 1 / (1 + math.exp(-1.0))
    right = draw.binomial(300, truthful, size=20_000)
    for seen in (205, 219, 230):
        assert Guesses(1000, 300, seen).p_value(1.0) == pytest.approx((right >= seen).mean(), abs=0.012)


def test_the_p_value_holds_for_a_mechanism_that_spends_its_delta() -> None:
    """With a delta that shows: the chance of a small p-value stays small."""
    epsilon, delta, small = 1.0, 2e-3, 0
    for seed in range(400):
        included = coins(200, seed)
        scores = _randomised_response(included, epsilon, delta, np.random.default_rng(seed + 5000))
        small += _guesses(scores, included, 100, 100).p_value(epsilon, delta) <= 0.05
    assert small <= stats.binom.isf(1e-4, 400, 0.05)


def test_abstentions_help_an_attack_that_knows_a_few() -> None:
    """Of 1,000 canaries 60 are certain; guessing on all of them drowns that."""
    draw, included = np.random.default_rng(2), coins(1000, 3)
    scores = draw.normal(size=1000)
    scores[:60] = np.where(included[:60], 10.0, -10.0)
    few = _guesses(scores, included, 25, 25)
    every = _guesses(scores, included, 500, 500)
    assert few.epsilon() > 2
    assert few.epsilon() > every.epsilon()


def test_delta_only_ever_weakens_the_bound() -> None:
    outcome = Guesses(1000, 500, 400)
    found = [outcome.epsilon(delta) for delta in (0.0, 1e-6, 1e-4, 1e-2)]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]


def test_it_is_marked_as_report_only() -> None:
    assert Guesses.report_only


def test_wrong_numbers_are_named() -> None:
    with pytest.raises(ConfigError, match="6 right of 5"):
        Guesses(10, 5, 6)
    with pytest.raises(ConfigError, match="epsilon -1"):
        Guesses(10, 5, 4).p_value(-1)
