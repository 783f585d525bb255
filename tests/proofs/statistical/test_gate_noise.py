"""The noise of every mechanism of the gate, as it is drawn: its scale and shape, and that no draw is shared."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from adversaries import P_THRESHOLD, betrays_more, variance_p_value
from dp_accounting.dp_event import LaplaceDpEvent, SelfComposedDpEvent
from scipy import stats

from rayprivacy.accounting.accountant import total_mu_squared
from rayprivacy.release import noise
from rayprivacy.release.figure_vectors import FigureVectors
from rayprivacy.release.histogram import MAX_CELLS, SCALE, HistogramMechanism, Margins
from rayprivacy.release.votes import VoteMechanism

VOTES = VoteMechanism(queries=500, candidates=50, teachers=10, sigma=3.0)
CENTRED, LAPLACE = replace(VOTES, clip=0.1), replace(VOTES, noise="laplace")
HISTOGRAM = HistogramMechanism(MAX_CELLS, sigma=3.0)
MARGINS = Margins((600, 400), sigma=3.0)
FIGURES = FigureVectors(MAX_CELLS, sigma=3.0)
DECLARED = {  # standard deviations by hand
    VOTES: 3.0 * (math.sqrt(2) * (1 + 1e-6) * SCALE + math.sqrt(50)),
    CENTRED: 3.0 * (0.2 * (1 + 1e-6) * SCALE + math.sqrt(50)),
    LAPLACE: 3.0 * (2 * (1 + 1e-6) * SCALE + 50) * math.sqrt(2),
    HISTOGRAM: 3.0 * SCALE,
    MARGINS: 3.0 * math.sqrt(2) * SCALE,
    FIGURES: 3.0 * SCALE,
}
DRAWS = 25  # of a histogram: 25,000 numbers, as those of the votes

NAMES = ("votes", "centred", "laplace", "histogram", "margins", "figures")
every = pytest.mark.parametrize("mechanism", DECLARED, ids=NAMES)


def _drawn(mechanism, draws=DRAWS):
    """Noise [queries, candidates], or [draws, cells]."""
    if isinstance(mechanism, VoteMechanism):
        return mechanism.draw(np.zeros((mechanism.queries, mechanism.candidates), dtype=np.int64))
    return np.stack([mechanism.draw(np.zeros(mechanism.cells, dtype=np.int64)) for _ in range(draws)])


@cache
def _first(mechanism):
    return _drawn(mechanism)


def _p_value(mechanism, noisy):
    """Of a noise of the declared scale."""
    if mechanism is LAPLACE:
        return float(stats.kstest(noisy.ravel(), stats.laplace(scale=DECLARED[mechanism] / math.sqrt(2)).cdf).pvalue)
    return variance_p_value(noisy, DECLARED[mechanism])


@every
def test_the_noise_has_the_declared_scale_and_shape(mechanism):
    noisy, std = _first(mechanism), mechanism.noise_std_grid
    assert noisy.size == 25_000
    assert std == pytest.approx(DECLARED[mechanism], rel=1e-12)
    assert mechanism.sigma == mechanism.event.event.noise_multiplier
    assert _p_value(mechanism, noisy) > P_THRESHOLD
    if mechanism is LAPLACE:
        assert mechanism.event == SelfComposedDpEvent(LaplaceDpEvent(3.0), 500)
        assert _p_value(mechanism, np.random.default_rng(0).normal(size=noisy.size) * std) < P_THRESHOLD
    else:
        assert std == mechanism.sigma * mechanism.sensitivity
        assert math.isclose(total_mu_squared([mechanism.event]), mechanism.event.count * mechanism.sigma**-2)
    shape = stats.laplace(scale=std / math.sqrt(2)) if mechanism is LAPLACE else stats.norm(scale=std)
    bins = np.bincount((shape.cdf(noisy.ravel()) * 50).astype(int), minlength=50)
    assert stats.chisquare(bins).pvalue > P_THRESHOLD


@every
@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_the_same_test_rejects_a_scale_30_percent_off(monkeypatch, mechanism, factor):
    for name in ("add_discrete_gaussian", "add_discrete_laplace"):
        real = getattr(noise, name)
        monkeypatch.setattr(noise, name, lambda signal, scale, real=real: real(signal, scale * factor))
    few = replace(mechanism, queries=100) if isinstance(mechanism, VoteMechanism) else mechanism
    assert _p_value(mechanism, _drawn(few, 5)) < P_THRESHOLD


def test_on_a_coarse_grid_the_noise_is_the_discrete_laplace():
    """Where the steps show: a chance like exp(-|n| / scale), so that no ratio exceeds exp(1 / scale) per step."""
    drawn, ratio = noise.add_discrete_laplace(np.zeros(100_000, dtype=np.int64), 2.0), math.exp(-0.5)
    expected = (1 - ratio) / (1 + ratio) * ratio ** np.abs(np.arange(-12, 13))
    counts = np.array([(drawn == n).sum() for n in range(-12, 13)])
    both = np.append(expected, 1 - expected.sum()) * len(drawn)
    assert stats.chisquare(np.append(counts, len(drawn) - counts.sum()), both).pvalue > P_THRESHOLD


def _uncorrelated(*both):
    return bool(stats.pearsonr(*(each.ravel().astype(float) for each in both)).pvalue > P_THRESHOLD)


@every
def test_no_noise_is_shared_between_draws_rows_or_columns(mechanism):
    first, second = _first(mechanism), _drawn(mechanism)
    assert _uncorrelated(first, second)
    assert _uncorrelated(np.sort(first, axis=1)[:, 0], np.sort(second, axis=1)[:, 0])
    assert _uncorrelated(first[:-1], first[1:])
    assert _uncorrelated(first[:, :-1], first[:, 1:])
    assert len({tuple(sorted(row)) for row in np.vstack([first, second]).tolist()}) == 2 * len(first)
    assert mechanism is not MARGINS or _uncorrelated(first[:, :400], first[:, 600:])


def test_cached_noise_would_be_noticed(monkeypatch):
    cached = noise.add_discrete_gaussian(np.zeros(50, dtype=np.int64), VOTES.noise_std_grid)
    monkeypatch.setattr(noise, "add_discrete_gaussian", lambda signal, std: signal + cached)
    drawn = _drawn(VOTES)
    assert not _uncorrelated(drawn[:-1], drawn[1:])


@pytest.mark.parametrize(
    "mechanism", [VoteMechanism(20, 1000, 2, 1e9 * 0.999), HistogramMechanism(MAX_CELLS, 1e9 * 0.999)]
)
def test_the_largest_noise_stays_inside_64_bits(mechanism):
    assert variance_p_value(_drawn(mechanism), mechanism.noise_std_grid) > P_THRESHOLD
    largest = VoteMechanism(2, 50_000, 2**30, 1e9 * 0.999)
    assert 40 * largest.noise_std_grid + largest.teachers * SCALE < 2**62


def _exceeds_the_claim(mechanism, record, claimed):
    """Two worlds, with a canary and without, by the best test against Gaussian noise: the projection on the canary."""
    unit, runs = mechanism.contribution(np.array([record])), 1500
    middle = float(unit @ unit) / 2
    hits, false = (sum(float(mechanism.draw(sums) @ unit) > middle for _ in range(runs)) for sums in (unit, unit * 0))
    return betrays_more(hits, false, runs, sigma=claimed)


KINDS = [(HistogramMechanism, 1, [5]), (Margins, (2, 2), [5, 0, 5, 0]), (FigureVectors, 3, [1e9, 2e9, -3e9])]


@pytest.mark.parametrize(("kind", "cells", "record"), KINDS)
def test_an_attacker_who_knows_all_other_units_sees_no_more_than_claimed(kind, cells, record):
    assert not _exceeds_the_claim(kind(cells, 1.0), record, claimed=1.0)
    assert _exceeds_the_claim(kind(cells, 1.0 / 1.5), record, claimed=1.0)  # 1.5 times too little noise


def test_noise_for_one_partition_only_exceeds_the_claim(monkeypatch):
    monkeypatch.setattr(Margins, "sensitivity", float(SCALE))
    assert _exceeds_the_claim(Margins((2, 2), 0.75), [5, 0, 5, 0], claimed=0.75)
