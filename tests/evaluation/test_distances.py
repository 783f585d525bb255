"""Distances of distributions against closed forms, scipy's matrix root and hand-made shares."""

import numpy as np
import pytest
from scipy.linalg import sqrtm

from rayprivacy.core.errors import ConfigError
from rayprivacy.evaluation.fidelity import frechet, gaussian_frechet, jensen_shannon, mauve, total_variation


def _covariance(draw: np.random.Generator, size: int, rank: int) -> np.ndarray:
    root = draw.normal(size=(size, rank))
    return root @ root.T


def test_frechet_of_commuting_gaussians_is_a_closed_form() -> None:
    left, right = np.array([1.0, 4.0, 9.0]), np.array([4.0, 4.0, 1.0])
    apart = np.array([1.0, -2.0, 0.5])
    expected = (apart**2).sum() + ((np.sqrt(left) - np.sqrt(right)) ** 2).sum()
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    found = gaussian_frechet(apart, turn @ np.diag(left) @ turn.T, np.zeros(3), turn @ np.diag(right) @ turn.T)
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rank", [12, 40])
def test_frechet_is_the_one_by_the_matrix_root(rank: int) -> None:
    draw = np.random.default_rng(rank)
    left, right = _covariance(draw, 12, rank), _covariance(draw, 12, rank)
    mean, other = draw.normal(size=12), draw.normal(size=12)
    expected = ((mean - other) ** 2).sum() + np.trace(left + right - 2 * sqrtm(left @ right).real)
    assert gaussian_frechet(mean, left, other, right) == pytest.approx(expected, rel=1e-8)


def test_frechet_of_samples_uses_their_moments() -> None:
    draw = np.random.default_rng(2)
    left, right = draw.normal(size=(300, 5)), draw.normal(1, 2, size=(200, 5))
    expected = gaussian_frechet(left.mean(0), np.cov(left.T), right.mean(0), np.cov(right.T))
    assert frechet(left, right) == pytest.approx(expected)
    assert expected == pytest.approx(5 * (1 + (2 - 1) ** 2), rel=0.3)


def test_frechet_of_equal_samples_is_zero_also_in_fewer_texts_than_dimensions() -> None:
    few = np.random.default_rng(3).normal(size=(10, 40))
    assert frechet(few, few) == pytest.approx(0, abs=1e-9)
    assert frechet(few[:, :1], few[:, :1]) == pytest.approx(0, abs=1e-12)
    with pytest.raises(ConfigError, match="1 texts"):
        frechet(few[:1], few)


def test_mauve_is_high_for_one_distribution_and_low_for_two() -> None:
    draw = np.random.default_rng(4)
    real, same = draw.normal(size=(2, 400, 8)).astype(np.float32)
    far = (draw.normal(size=(400, 8)) + np.array([6.0] + [0.0] * 7)).astype(np.float32)
    assert mauve(real, same, 0) > 0.8
    assert mauve(real, far, 0) < 0.3
    assert mauve(real, same, 0) == mauve(real, same, 0)


def test_mauve_of_one_text_said_by_both_is_one() -> None:
    assert mauve(np.ones((50, 4), np.float32), np.ones((50, 4), np.float32), 0) == 1.0


def test_shares_by_hand() -> None:
    assert total_variation([3, 1], [1, 3]) == 0.5
    assert total_variation([2, 0], [7, 0]) == 0
    # middle (1/2, 1/2): each side is 3/4 log2(3/2) + 1/4 log2(1/2)
    assert jensen_shannon([3, 1], [1, 3]) == pytest.approx(0.75 * np.log2(1.5) - 0.25)
    assert jensen_shannon([1, 2, 0], [2, 4, 0]) == 0
