"""The vote mechanism: how far one teacher can move the sums, and whether the noise is what the event says."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from rayprivacy.core.errors import EventError, ReleaseError
from rayprivacy.release import noise
from rayprivacy.release.vote import SCALE, VoteMechanism

P_THRESHOLD = 1e-4
NOISE = VoteMechanism(queries=500, candidates=50, teachers=10, sigma=3.0)
CANDIDATES = 8
VOTE = VoteMechanism(queries=1, candidates=CANDIDATES, teachers=4, sigma=3.0)


def _zero(mechanism: VoteMechanism = NOISE) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.zeros((mechanism.queries, mechanism.candidates), dtype=np.int64)


def _std_p_value(noisy: np.ndarray[Any, Any], std: float) -> float:
    chi2 = stats.chi2(noisy.size)
    total = float(((noisy / std) ** 2).sum())
    return 2 * min(float(chi2.cdf(total)), float(chi2.sf(total)))


anything = hnp.arrays(np.float64, CANDIDATES, elements=st.floats(allow_nan=True, allow_infinity=True))
simplex = hnp.arrays(np.float64, CANDIDATES, elements=st.floats(0, 1)).map(lambda v: v / max(v.sum(), 1e-9))
one_hot = st.integers(0, CANDIDATES - 1).map(lambda index: np.eye(CANDIDATES)[index])
barely_too_much = st.floats(0, 2e-6).map(lambda extra: np.eye(CANDIDATES)[0] * (1 + extra))
votes = st.one_of(
    anything, simplex, one_hot, barely_too_much, simplex.map(lambda v: v * 1e9), st.just(np.zeros(CANDIDATES))
)


@given(votes, votes, st.lists(votes, min_size=3, max_size=3))
@settings(max_examples=300, deadline=None)
def test_one_changed_teacher_moves_the_sum_by_at_most_the_sensitivity(
    before: np.ndarray[Any, Any], after: np.ndarray[Any, Any], others: list[np.ndarray[Any, Any]]
) -> None:
    sums = [VOTE.quantise(np.stack([changed, *others])[:, None, :]).sum(0) for changed in (before, after)]
    assert np.linalg.norm((sums[0] - sums[1]).astype(np.float64)) <= VOTE.sensitivity
    for total in sums:
        VOTE.check(total)


@pytest.mark.parametrize("candidates", [2, 50, 1000, 50_000])
def test_the_bound_is_tight(candidates: int) -> None:
    mechanism = VoteMechanism(1, candidates, 1, 1.0)
    first, second = np.zeros((2, candidates))
    first[0] = second[1] = 1.0
    moved = np.linalg.norm((mechanism.quantise(first) - mechanism.quantise(second)).astype(np.float64))
    assert 0.99 * mechanism.sensitivity <= moved <= mechanism.sensitivity


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1e-12, 1.1, 1e308])
def test_a_failing_teacher_votes_a_constant(bad: float) -> None:
    rows = np.tile(np.eye(CANDIDATES)[1], (3, 1))
    rows[1, 0] = bad
    quantised = VOTE.quantise(rows)
    assert quantised[1].tolist() == [SCALE // CANDIDATES] * CANDIDATES
    assert np.array_equal(quantised[0], quantised[2])


def test_the_noise_has_the_declared_scale_and_shape() -> None:
    noisy = NOISE.draw(_zero())
    assert noisy.size >= 20_000
    assert _std_p_value(noisy, NOISE.noise_std_grid) > P_THRESHOLD
    bins = stats.norm.cdf(noisy.ravel() / NOISE.noise_std_grid) * 50
    assert stats.chisquare(np.bincount(bins.astype(int), minlength=50)).pvalue > P_THRESHOLD
    assert (
        NOISE.noise_std_grid
        == NOISE.sigma * NOISE.sensitivity
        == NOISE.event.event.noise_multiplier * NOISE.sensitivity
    )


@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_the_same_test_rejects_a_scale_30_percent_off(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    real: Callable[..., Any] = noise.add_discrete_gaussian
    monkeypatch.setattr(noise, "add_discrete_gaussian", lambda signal, std: real(signal, std * factor))
    assert _std_p_value(NOISE.draw(_zero()), NOISE.noise_std_grid) < P_THRESHOLD


def _uncorrelated(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> bool:
    return bool(stats.pearsonr(first.ravel().astype(float), second.ravel().astype(float)).pvalue > P_THRESHOLD)


def test_no_noise_is_shared_between_draws_queries_or_candidates() -> None:
    first, second = NOISE.draw(_zero()), NOISE.draw(_zero())
    assert _uncorrelated(first, second)
    assert _uncorrelated(np.sort(first, axis=1)[:, 0], np.sort(second, axis=1)[:, 0])
    assert _uncorrelated(first[:-1], first[1:])
    assert _uncorrelated(first[:, :-1], first[:, 1:])
    assert len({tuple(sorted(row)) for row in np.vstack([first, second]).tolist()}) == 2 * NOISE.queries


def test_cached_noise_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    cached = noise.add_discrete_gaussian(np.zeros(50, dtype=np.int64), NOISE.noise_std_grid)
    monkeypatch.setattr(noise, "add_discrete_gaussian", lambda signal, std: signal + cached)
    drawn = NOISE.draw(_zero())
    assert not _uncorrelated(drawn[:-1], drawn[1:])


def test_the_mean_is_unbiased() -> None:
    mechanism = VoteMechanism(queries=2000, candidates=5, teachers=100, sigma=2.0)
    truth = np.array([0.5, 0.25, 0.125, 0.125, 0.0])
    one = mechanism.quantise(np.broadcast_to(truth, (mechanism.queries, 5)))
    means = mechanism.to_mean(mechanism.draw(one * mechanism.teachers))
    z = (means.mean(0) - truth) / (mechanism.noise_std_grid / SCALE / mechanism.teachers / math.sqrt(len(means)))
    assert 2 * stats.norm.sf(np.abs(z).max()) > P_THRESHOLD / 5
    assert (means < 0).any()  # nothing is clipped


@pytest.mark.parametrize(
    "arguments",
    [(0, 2, 1, 1.0), (1, 0, 1, 1.0), (1, 2, 2**31, 1.0), (1, 2, True, 1.0), (1.0, 2, 1, 1.0)]
    + [(1, 2, 1, sigma) for sigma in (0.0, -1.0, math.nan, math.inf, 1e10, 1e-9)],
)
def test_impossible_mechanisms_are_not_built(arguments: tuple[Any, ...]) -> None:
    with pytest.raises((ReleaseError, EventError)):
        VoteMechanism(*arguments)


def test_votes_of_another_width_are_refused() -> None:
    with pytest.raises(ReleaseError, match="last axis"):
        VOTE.quantise(np.zeros((3, CANDIDATES + 1)))


def test_the_largest_noise_stays_inside_64_bits() -> None:
    mechanism = VoteMechanism(2, 50_000, 2**30, 1e9 * 0.999)
    assert 40 * mechanism.noise_std_grid + mechanism.teachers * SCALE < 2**62
    noisy = VoteMechanism(20, 1000, 2, 1e9 * 0.999).draw(np.zeros((20, 1000), dtype=np.int64))
    assert _std_p_value(noisy, VoteMechanism(20, 1000, 2, 1e9 * 0.999).noise_std_grid) > P_THRESHOLD
