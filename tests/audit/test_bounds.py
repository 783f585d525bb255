"""Counts in two worlds: intervals cover, exact mechanisms are never accused, 1.5 times too little noise is found."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Generator
from scipy import stats

from rayprivacy.accounting.gaussian import delta_of
from rayprivacy.auditing.bounds import Counts, Profile, clopper_pearson, compare, counts_at, epsilon_lower_bound
from rayprivacy.core.errors import ConfigError

TRIALS = 4000  # in each world
Noise = Callable[..., np.ndarray[Any, Any]]


CASES: dict[str, tuple[DpEvent, Noise, float]] = {
    **{f"gaussian {sigma:g}": (GaussianDpEvent(sigma), Generator.normal, sigma) for sigma in (0.5, 1.0, 2.0)},
    "laplace 1": (LaplaceDpEvent(1.0), Generator.laplace, 1.0),
}
NIGHTLY = ("gaussian 0.5", "gaussian 2")
PROFILES = {name: Profile.of([event]) for name, (event, _, _) in CASES.items()}


def _attacked(noise: Noise, scale: float, seed: int) -> list[Counts]:
    """Three thresholds, fixed beforehand, on the output of a sum that has 1 more with the secret."""
    draw = np.random.default_rng(seed)
    with_secret, without_secret = (at + noise(draw, 0, scale, TRIALS) for at in (1, 0))
    return [counts_at(threshold, with_secret, without_secret) for threshold in (0.0, 0.5, 1.0)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.exhaustive] * (name in NIGHTLY)) for name in CASES]
)
def test_none_of_200_correct_runs_is_flagged_and_noise_1_5_times_too_small_is_in_9_of_10(name: str) -> None:
    _, noise, scale = CASES[name]
    assert sum(compare(PROFILES[name], _attacked(noise, scale, seed)).flagged for seed in range(200)) == 0
    found = sum(compare(PROFILES[name], _attacked(noise, scale / 1.5, seed)).flagged for seed in range(10))
    assert found >= 9


def test_sampled_steps_are_compared_with_the_sampled_curve() -> None:
    """A secret that always takes part is found against a claim of coins, and the coins themselves are not."""
    profile = Profile.of([PoissonSampledDpEvent(0.3, GaussianDpEvent(0.5))])

    def flagged(rate: float, seed: int) -> bool:
        draw = np.random.default_rng(seed)
        with_secret = draw.normal(scale=0.5, size=TRIALS) + (draw.random(TRIALS) < rate)
        return compare(profile, [counts_at(0.5, with_secret, draw.normal(scale=0.5, size=TRIALS))]).flagged

    assert not any(flagged(0.3, seed) for seed in range(30))
    assert all(flagged(1.0, seed) for seed in range(10))


@given(st.floats(0.2, 5), st.floats(0.001, 0.999))
def test_the_profile_of_a_gaussian_bounds_the_best_attack_and_nearly_meets_it(sigma: float, false: float) -> None:
    profile = Profile.of([GaussianDpEvent(sigma)])
    best = float(stats.norm.cdf(stats.norm.ppf(false) + 1 / sigma))
    assert best - 1e-9 <= profile.most_hits(false) <= best + 0.02
    assert all(delta_of(1 / sigma, eps) <= delta + 1e-12 for eps, delta in profile.points)
    composed = Profile.of([SelfComposedDpEvent(GaussianDpEvent(sigma * 10), 100)])
    assert np.allclose(profile.points, composed.points, atol=1e-9)


@given(st.integers(1, 60), st.data(), st.sampled_from([0.9, 0.99]))
def test_the_intervals_cover_the_true_rate_as_often_as_they_say(trials: int, data: Any, confidence: float) -> None:
    rate = data.draw(st.floats(1e-6, 1 - 1e-6))
    ends = [clopper_pearson(successes, trials, confidence) for successes in range(trials + 1)]
    missing = [not low <= rate <= high for low, high in ends]
    assert stats.binom.pmf(np.arange(trials + 1), trials, rate)[missing].sum() <= 1 - confidence + 1e-9


@given(st.integers(0, 500), st.integers(0, 500), st.floats(0, 0.2))
def test_the_bound_on_epsilon_agrees_with_the_comparison(hits: int, false: int, delta: float) -> None:
    """The largest claim that the counts refute is the bound."""
    counts = Counts(hits, 500, false, 500)
    bound = epsilon_lower_bound(counts, delta, 0.99)
    assert not compare(Profile.claimed(bound + 1e-9, delta), [counts], 0.99).flagged
    if bound > 1e-6:
        assert compare(Profile.claimed(bound * (1 - 1e-6), delta), [counts], 0.99).flagged


def test_the_bound_stays_below_the_true_epsilon_of_randomised_response_and_comes_near() -> None:
    draw, true = np.random.default_rng(0), 1.5
    truthful = math.exp(true) / (1 + math.exp(true))
    bounds = []
    for _ in range(100):
        counts = Counts(int(draw.binomial(5000, truthful)), 5000, int(draw.binomial(5000, 1 - truthful)), 5000)
        bounds.append(epsilon_lower_bound(counts, 0.0, 0.95))
    assert sum(bound > true for bound in bounds) <= 5
    assert np.median(bounds) > true - 0.2


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: Counts(5, 4, 0, 4), "hits is 5"),
        (lambda: Counts(0, 0, 0, 4), "hits is 0 of 0"),
        (lambda: clopper_pearson(1, 2, 1.0), "confidence is 1.0"),
        (lambda: epsilon_lower_bound(Counts(1, 2, 1, 2), 1.0), "delta is 1.0"),
        (lambda: compare(Profile.claimed(1.0, 0.0), []), "attacks is empty"),
        (lambda: Profile(()), "no point"),
        (lambda: Profile.claimed(-1.0, 0.0), "epsilon -1.0"),
    ],
)
def test_wrong_numbers_are_named(wrong: Callable[[], object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        wrong()
