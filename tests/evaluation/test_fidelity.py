"""Distances of distributions, precision and recall, and topics: closed forms, reference implementations, by hand."""

import numpy as np
import pytest
from prdc import compute_prdc
from scipy.linalg import sqrtm

from rayprivacy.core.errors import ConfigError
from rayprivacy.evaluation.fidelity import balls, frechet, gaussian_frechet, jensen_shannon, mauve, total_variation
from rayprivacy.evaluation.words import Topics

TEA = [f"i drink {adjective} tea with {what}" for adjective in ("green", "black", "hot") for what in ("milk", "honey")]
RAIN = [f"the {what} will bring {how} rain" for what in ("storm", "wind", "cloud") for how in ("heavy", "light")]
TRAIN = [f"take the {when} train to the {where}" for when in ("early", "late", "next") for where in ("city", "coast")]


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
    left, right = (root @ root.T for root in draw.normal(size=(2, 12, rank)))
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
    assert mauve(np.ones((50, 4), np.float32), np.ones((50, 4), np.float32), 0) == 1.0, "one text, said by both"


def test_shares_by_hand() -> None:
    assert total_variation([3, 1], [1, 3]) == 0.5
    assert total_variation([2, 0], [7, 0]) == 0
    # middle (1/2, 1/2): each side is 3/4 log2(3/2) + 1/4 log2(1/2)
    assert jensen_shannon([3, 1], [1, 3]) == pytest.approx(0.75 * np.log2(1.5) - 0.25)
    assert jensen_shannon([1, 2, 0], [2, 4, 0]) == 0


@pytest.mark.parametrize("neighbours", [1, 20])
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
    found = balls(real, real[:5], 3).figures()
    assert found == pytest.approx({"precision": 1, "recall": 0.5, "f1": 2 / 3, "density": 5 / 3, "coverage": 0.5})


def test_nothing_in_common_is_zero_and_too_few_texts_are_refused() -> None:
    real = np.arange(20.0)[:, None]
    assert set(balls(real, real + 1000, 3).figures().values()) == {0.0}
    with pytest.raises(ConfigError, match="neighbours is 5, and one side has 5 texts"):
        balls(np.zeros((9, 2)), np.zeros((5, 2)), 5)


def test_the_same_topics_have_distance_zero_and_one_that_is_left_out_is_its_share() -> None:
    texts = (TEA + RAIN + TRAIN) * 4
    topics = Topics(texts)
    assert topics.distances(texts, texts[::-1]) == {"topic_total_variation": 0, "topic_jensen_shannon": 0}
    found = topics.distances(texts, (TEA + RAIN) * 6)
    assert abs(found["topic_total_variation"] - 1 / 3) < 0.1
    assert found["topic_jensen_shannon"] > 0.1


def test_clusters_come_from_real_text_alone() -> None:
    topics = Topics(TEA * 10)
    assert topics.counts(["nothing of this was seen", "zzz"]).sum() == 2
    assert topics.count <= len(TEA)
    topics = Topics(["ok"] * 30)
    assert topics.count == 1
    assert topics.distances(["ok"] * 30, ["fine"] * 30)["topic_total_variation"] == 0
