"""Precision, recall, density and coverage: those of the reference implementation, and by hand."""

import numpy as np
import pytest
from prdc import compute_prdc

from rayprivacy.core.errors import ConfigError
from rayprivacy.evaluation.fidelity import balls


@pytest.mark.parametrize("neighbours", [1, 3, 5, 20])
@pytest.mark.parametrize(("real", "synthetic", "shift"), [(700, 600, 0.3), (60, 1100, 1.5), (900, 40, 0.0)])
def test_they_are_those_of_prdc(real: int, synthetic: int, shift: float, neighbours: int) -> None:
    draw = np.random.default_rng(real + neighbours)
    ours, theirs = draw.normal(size=(real, 8)), draw.normal(loc=shift, size=(synthetic, 8))
    found, expected = balls(ours, theirs, neighbours).figures(), compute_prdc(ours, theirs, neighbours)
    for name in ("precision", "recall", "density", "coverage"):
        assert found[name] == pytest.approx(expected[name], abs=1e-9), name


def test_they_tell_a_narrow_generator_from_a_wide_one() -> None:
    draw = np.random.default_rng(0)
    real = draw.normal(size=(400, 4))
    narrow = balls(real, 0.2 * draw.normal(size=(400, 4)), 5).figures()
    wide = balls(real, 3 * draw.normal(size=(400, 4)), 5).figures()
    assert narrow["precision"] > 0.95
    assert narrow["recall"] < 0.3
    assert wide["precision"] < 0.5
    assert wide["recall"] > 0.8


def test_by_hand_on_a_line() -> None:
    real, synthetic = np.array([[0.0], [1.0], [3.0]]), np.array([[0.5], [10.0], [10.5]])
    found = balls(real, synthetic, 1)  # real radii 1, 1, 2; synthetic radii 9.5, 0.5, 0.5
    assert found.precise.tolist() == [1, 0, 0]
    assert found.dense.tolist() == [2, 0, 0]
    assert found.covered.tolist() == [1, 1, 0]
    assert found.recalled.tolist() == [1, 1, 1]
    assert found.figures()["f1"] == pytest.approx(0.5)


def test_equal_texts_lie_in_their_ball_of_radius_zero() -> None:
    real = np.array([[0.0, 0.0]] * 5 + [[5.0, 5.0]] * 5)
    assert balls(real, real[:5], 3).figures() == pytest.approx(
        {"precision": 1, "recall": 0.5, "f1": 2 / 3, "density": 5 / 3, "coverage": 0.5}
    )


def test_nothing_in_common_is_zero() -> None:
    real = np.arange(20.0)[:, None]
    assert set(balls(real, real + 1000, 3).figures().values()) == {0.0}


def test_too_few_texts_are_refused() -> None:
    with pytest.raises(ConfigError, match="neighbours is 5, and one side has 5 texts"):
        balls(np.zeros((9, 2)), np.zeros((5, 2)), 5)
