"""The claim of a token, held against every pair of words and every outcome of the real, integer rows."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rayprivacy.core.errors import ConfigError
from rayprivacy.sanitize.table import ROUNDING, Table, epsilon_for_bound, epsilon_for_keep, rounded_up
from rayprivacy.sanitize.vocabulary import Vocabulary, load_glove

SETTINGS = {
    "santext": (14.0, 0, math.inf),
    "bounded by the floor": (40.0, 0, math.inf),
    "strong": (0.5, 0, math.inf),
    "sensitive words": (14.0, 50, math.inf),
    "capped": (14.0, 0, 1.0),
}


def _log_chances(table: Table) -> np.ndarray:
    """Of every outcome for every word, from the rows that are drawn from."""
    weights = table.weights(np.arange(len(table.vocabulary) + 1))
    assert weights.dtype == np.int64
    assert weights.min() >= 2**20
    return np.log(weights) - np.log(weights.sum(1))[:, None]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("unit_length", [True, False])
def test_no_pair_of_words_has_a_larger_ratio_than_claimed(setting: str, unit_length: bool) -> None:
    epsilon, first, cap = SETTINGS[setting]
    if not unit_length:
        epsilon /= 5  # raw vectors are about five times as long
    table = Table(load_glove(500, unit_length), epsilon, first, cap)
    chances = _log_chances(table)
    apart = table.distances(np.arange(501), 0, 501)
    worst = np.array([(chances[word] - chances).max(1) for word in range(501)])
    assert (worst <= epsilon * apart + ROUNDING).all(), "theorem 1"
    assert worst.max() <= table.token_bound, "what is charged"
    if first == 0:  # else a word that cannot come out itself may be in the worst pair, and the bound is an upper one
        assert worst.max() >= 0.99 * table.token_bound, "and no more"


def test_the_row_of_a_word_is_the_law_of_the_paper(glove: Vocabulary) -> None:
    table, words = Table(glove, 14.0), np.array([3, 250, 500])
    weights = table.weights(words)
    for row, word in zip(weights, words, strict=True):
        law = np.exp(-14.0 / 2 * np.linalg.norm(glove.vectors[:500] - glove.vectors[word], axis=1))
        np.testing.assert_allclose(row / row.sum(), law / law.sum(), atol=1e-6)
    np.testing.assert_allclose(table.keep_rates[[3, 250]], (weights / weights.sum(1)[:, None])[[0, 1], [3, 250]], 1e-3)


def test_far_words_are_possible_where_floats_would_say_never(glove: Vocabulary) -> None:
    weights = Table(glove, 90.0).weights(np.array([0]))
    assert weights.min() == 2**20
    assert 2.0**52 * np.exp(-90 / 2 * 1.5) < 1


def test_a_cap_is_a_distance(glove: Vocabulary) -> None:
    apart = Table(glove, 14.0, cap=1.0).distances(np.arange(60), 0, 60)
    assert apart.max() == 1.0
    assert (apart[:, None, :] <= apart[:, :, None] + apart[None] + 1e-9).all()
    assert Table(glove, 14.0, cap=1.0).token_bound < Table(glove, 14.0).token_bound


def test_epsilon_is_found_for_a_share_of_words_that_stay_or_a_bound(glove: Vocabulary) -> None:
    for keep in (0.2, 0.5, 0.9):
        assert np.median(Table(glove, epsilon_for_keep(glove, keep)).keep_rates) == pytest.approx(keep, abs=0.02)
    for bound in (0.01, 3.0, 16.0, 22.1):
        assert 0.98 * bound <= Table(glove, epsilon_for_bound(glove, bound)).token_bound <= bound


@pytest.mark.parametrize(
    ("make", "value", "says"),
    [
        (epsilon_for_bound, 1e-5, "less than a table can hold"),
        (epsilon_for_bound, 50.0, r"no word costs more than 22\.2: set sanitize\.keep"),
        (Table, 1e4, r"sanitize\.epsilon is 1e\+04"),
    ],
)
def test_what_no_table_has_is_refused(glove: Vocabulary, make: Callable[..., Any], value: float, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make(glove, value)


def test_scores_of_the_paper(glove: Vocabulary) -> None:
    """With epsilon words stay more often, and have fewer outcomes and inputs; counted by a simulation."""
    words, weak, strong = np.array([5, 100, 300]), Table(glove, 30.0), Table(glove, 10.0)
    assert (weak.keep_rates > strong.keep_rates).all()
    assert (weak.distinct_outcomes(words) < strong.distinct_outcomes(words)).all()
    assert (weak.distinct_inputs(words) < strong.distinct_inputs(words)).all()
    dice, chances = np.random.default_rng(0), np.exp(_log_chances(strong))
    drawn = [len(set(dice.choice(500, size=1000, p=chances[word] / chances[word].sum()))) for word in words]
    np.testing.assert_allclose(strong.distinct_outcomes(words), drawn, rtol=0.1)


def test_two_machines_round_to_one_number() -> None:
    assert rounded_up(14.3) == 14.3
    assert rounded_up(14.3 + 1e-9) == 14.301
    assert rounded_up(4.7e-4 + 1e-12) == pytest.approx(4.7001e-4)
    assert rounded_up(1056.2000001) == 1056.3


def test_a_vocabulary_is_refused_in_a_sentence(glove: Vocabulary) -> None:
    with pytest.raises(ConfigError, match=r"sanitize\.words is 3, and mine has 2 words"):
        Vocabulary.of("mine", ["a", "A", "b"], np.eye(3), 3, True)
    with pytest.raises(ConfigError, match="length 0"):
        Vocabulary.of("mine", ["a", "b"], np.zeros((2, 2)), 2, True)
    assert Vocabulary.of("mine", ["A", "a", "b"], np.eye(3), 2, True).words == ("a", "b")
