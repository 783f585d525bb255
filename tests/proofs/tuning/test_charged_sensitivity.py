"""The charged metric: how far one held-out unit can move what is released, and whether the figure has its noise."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rayprivacy.core.errors import ReleaseError
from rayprivacy.release import noise
from rayprivacy.release.histogram import SCALE, HistogramMechanism
from rayprivacy.tuning.heldout_loss import GRID, counts_of, figure_of

MOST, UNITS, SIGMA, DRAWS = 10.0, 400, 3.0, 1000
P_THRESHOLD = 1e-4
WORST = [0.0, -0.0, MOST, math.nextafter(MOST, 0), -1e300, 1e300, math.nan, math.inf, -math.inf, 5e-324, 1e-9, MOST / 3]
TWO = HistogramMechanism(2, SIGMA)

_loss = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(0, MOST), st.sampled_from(WORST))
_bound = st.one_of(st.just(MOST), st.floats(0.01, 1000))


def sums(losses, most=MOST):
    return TWO.contribution(counts_of(np.array(losses, dtype=np.float64), most))


@given(st.lists(_loss, max_size=6), _loss, st.integers(0, 6), _bound)
def test_one_more_unit_moves_sums_by_the_sensitivity(others, loss, place, most):
    moved = sums([*others[:place], loss, *others[place:]], most) - sums(others, most)
    assert moved.min() >= 0
    assert sum(moved.tolist()) == SCALE  # a + b = GRID, a power of two: nothing is lost to rounding
    assert sum(step * step for step in moved.tolist()) <= SCALE**2 == TWO.sensitivity**2


@given(_loss, _bound)
def test_what_a_unit_brings_is_always_the_whole_grid(loss, most):
    ((above, below),) = counts_of(np.array([loss]), most).tolist()
    assert 0 <= above <= GRID
    assert above + below == GRID
    if not math.isfinite(loss) or loss >= most:
        assert below == 0
    elif loss <= 0:
        assert above == 0
    else:
        assert 0 <= loss / most - above / GRID < 1 / GRID + 1e-12


def test_a_unit_brings_the_same_in_any_company():
    """The bound is public: a loss that is larger than all others makes theirs no smaller."""
    alone, joined = (counts_of(np.array(losses), MOST) for losses in ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0, MOST]))
    assert np.array_equal(joined[:3], alone)


def noisy(losses, sigma=SIGMA):
    """Figures of many releases of the same losses."""
    mechanism = HistogramMechanism(2, sigma)
    total = mechanism.contribution(counts_of(losses, MOST))
    return np.array([figure_of(float(mechanism.to_shares(mechanism.draw(total))[0]), MOST) for _ in range(DRAWS)])


def p_value(losses):
    """Chi-square test of the figure's noise against what the documentation says of it."""
    share = float(losses.mean()) / MOST
    std = SIGMA * MOST / UNITS * math.hypot(share, 1 - share)
    assert std < SIGMA * MOST / UNITS  # the rule of thumb is on the safe side
    chi2, total = stats.chi2(DRAWS), float((((noisy(losses) - losses.mean()) / std) ** 2).sum())
    return 2 * min(float(chi2.cdf(total)), float(chi2.sf(total)))


def test_the_figure_is_the_mean_loss_with_the_noise_that_is_charged():
    losses = np.random.default_rng(5).uniform(1.0, 9.0, size=UNITS)
    assert p_value(losses) > P_THRESHOLD
    assert abs(noisy(losses, sigma=0.001) - losses.mean()).max() < MOST / GRID + 1e-3


@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_the_same_test_rejects_a_scale_30_percent_off(monkeypatch, factor):
    real: Callable[..., Any] = noise.add_discrete_gaussian
    monkeypatch.setattr(noise, "add_discrete_gaussian", lambda signal, std: real(signal, std * factor))
    assert p_value(np.random.default_rng(5).uniform(1.0, 9.0, size=UNITS)) < P_THRESHOLD


@pytest.mark.parametrize("total", [[0, 0], [0, 50 * SCALE], [50 * SCALE, 0]], ids=["nobody", "all zero", "all at most"])
def test_an_empty_cell_is_no_figure(total):
    """A loss of 0 would be the best of all trials, whatever the model."""
    share = float(TWO.to_shares(np.array(total))[0])
    with pytest.raises(ReleaseError, match=r"hides its figure.*hold out more users"):
        figure_of(share, MOST)
