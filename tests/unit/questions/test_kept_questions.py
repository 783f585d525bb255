"""Which questions are kept: the highest, those that are not twice there, and the selection that serves best."""

import numpy as np
import pytest

from rayprivacy.questions.keep import candidates, distinct, measured, selection, top

COLUMNS = {
    "roundtrip": np.array([True, False, True, True, False]),
    "likelihood": np.array([-1.0, -5.0, -2.0, -4.0, -3.0]),
    "classifier": np.array([0.1, 0.5, 0.3, 0.2, 0.4]),
    "ranking": np.array([5, 4, 3, 2, 1]),
    "value": np.array([0.0, 1.0, 0.5, 0.75, 0.25]),
}


def dice():
    return np.random.default_rng(0)


@pytest.mark.parametrize(
    ("by", "kept"),
    [
        ("none", [0, 1, 2, 3, 4]),
        ("roundtrip", [0, 2, 3]),
        ("likelihood", [0, 2, 4]),
        ("classifier", [1, 2, 4]),
        ("ranking", [0, 1, 2]),
        ("value", [1, 2, 3]),
    ],
)
def test_one_selection_of_each_kind(by, kept):
    assert np.flatnonzero(selection(by, COLUMNS, 0.6, dice())).tolist() == kept


def test_a_random_selection_is_that_of_its_seed():
    first, again, other = (
        selection("random", {"value": np.zeros(1000)}, 0.6, np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert first.sum() == other.sum() == 600
    assert (first == again).all()
    assert (first != other).any()


def test_of_equal_scores_the_first_are_kept_and_one_always_is():
    assert top(np.array([1.0, 2.0, 1.0, 1.0]), 0.5).tolist() == [True, True, False, False]
    assert top(np.array([1.0, 3.0, 2.0]), 0.01).tolist() == [False, True, False]


def test_questions_of_the_same_words_are_one():
    asked = ["What is it?", "what is it", "What is this?", "WHAT IS IT ?"]
    assert distinct(asked).tolist() == [True, False, True, False]
    assert distinct([]).tolist() == []


def test_the_selection_that_serves_best_is_taken():
    found = candidates(COLUMNS, 0.6, dice())
    assert [*found] == [
        "none", "random", "roundtrip", "likelihood", "classifier", "ranking", "value 40%", "value 60%", "value 80%",
    ]  # fmt: skip
    assert found["value 80%"].sum() == 4
    best, figures = measured(found, lambda kept: float(kept[1]) - kept.mean())
    assert figures["none"] == 0
    assert best == "value 40%"
    assert measured(found, lambda kept: 1.0)[0] == "none", "of equal ones the first: nothing is thrown away in vain"


def test_a_selection_that_is_empty_or_unknown_is_not_tried():
    assert [*candidates({"roundtrip": np.zeros(3, bool)}, 0.5, dice())] == ["none", "random"]
