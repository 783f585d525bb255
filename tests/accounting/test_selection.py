"""The number of trials: its distribution, its draw, and what publishing the winner costs."""

import itertools
import math
from fractions import Fraction

import dp_accounting as dpa
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from scipy import stats

from rayprivacy.accounting.accountant import epsilon
from rayprivacy.accounting.selection import (
    gamma_of,
    pay_for_all,
    select_event,
    trial_probabilities,
    trials_from_uniform,
)
from rayprivacy.core.errors import ConfigError, EventError
from rayprivacy.release.noise import draw_trials

INF = math.inf
CASES = [(mean, shape) for mean in (1.05, 3.0, 40.0) for shape in (0.0, 0.3, 1.0, 2.5, INF)]
RUN = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.01, dpa.GaussianDpEvent(1.0)), 1000)


def _truth(mean: float, shape: float, k: int) -> float:
    """P[K = k] by scipy."""
    if shape == INF:
        return float(stats.poisson.pmf(k, mean))
    gamma = gamma_of(mean, shape)
    if shape == 0:
        return float(stats.logser.pmf(k, 1 - gamma))
    return float(stats.nbinom.pmf(k, shape, gamma) / stats.nbinom.sf(0, shape, gamma)) if k else 0.0


@pytest.mark.parametrize(("mean", "shape"), CASES)
def test_probabilities_agree_with_scipy_and_have_the_mean(mean: float, shape: float) -> None:
    pairs = list(itertools.islice(trial_probabilities(mean, shape), 5000))
    assert pairs[0][0] == (0 if shape == INF else 1)
    for k, p in pairs[:60]:
        assert p == pytest.approx(_truth(mean, shape, k), rel=1e-8, abs=1e-300)
    assert math.fsum(p for _, p in pairs) == pytest.approx(1, abs=1e-9)
    assert math.fsum(k * p for k, p in pairs) == pytest.approx(mean, rel=1e-7)


def _p_value(drawn: list[int], mean: float, shape: float) -> float:
    chances = dict(itertools.islice(trial_probabilities(mean, shape), 500))
    cells = [k for k, p in chances.items() if p * len(drawn) >= 10]
    observed, expected = [drawn.count(k) for k in cells], [chances[k] * len(drawn) for k in cells]
    rest = len(drawn) - sum(observed), len(drawn) - sum(expected)
    return float(stats.chisquare([*observed, rest[0]], [*expected, rest[1]], sum_check=False).pvalue)


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, INF])
def test_drawn_numbers_fit_the_distribution_and_no_other_mean(shape: float) -> None:
    event = RepeatAndSelectDpEvent(RUN, 6.0, shape)
    drawn = [draw_trials(event) for _ in range(12_000)]  # 4,000 let one run in a thousand pass with the other mean
    assert _p_value(drawn, 6.0, shape) > 1e-6
    assert _p_value(drawn, 7.8, shape) < 1e-6


@pytest.mark.parametrize(("mean", "shape"), CASES)
def test_quantiles_are_the_inverse_of_the_sum(mean: float, shape: float) -> None:
    pairs = list(itertools.islice(trial_probabilities(mean, shape), 200))
    below = 0.0
    for k, p in pairs[:20]:
        if p > 1e-9:
            assert trials_from_uniform(below + p / 2, mean, shape) == k
        below += p
    assert trials_from_uniform(Fraction(0), mean, shape) == pairs[0][0]
    assert trials_from_uniform(Fraction(2**256 - 1, 2**256), mean, shape) > mean


def test_the_winner_costs_less_than_all_trials() -> None:
    alone, every = epsilon([RUN], 1e-5, "rdp"), epsilon([pay_for_all(RUN, 10)], 1e-5, "rdp")
    assert alone == pytest.approx(2.10, abs=0.01)
    assert every == pytest.approx(6.7, abs=0.1)
    for distribution in ("poisson", "geometric", "logarithmic"):
        assert 3.4 < epsilon([select_event(RUN, 10.0, distribution)], 1e-5, "rdp") < 4.4
    halfway = epsilon([select_event(RUN, 10.0, "negative-binomial", 0.5)], 1e-5, "rdp")
    assert halfway < epsilon([select_event(RUN, 10.0, "geometric")], 1e-5, "rdp")


def test_what_no_search_can_be_is_refused() -> None:
    for search in (("binomial",), ("geometric", 2.0), ("negative-binomial",)):
        with pytest.raises(ConfigError):
            select_event(RUN, 10.0, *search)
    for mean, shape in ((1.0001, 0.0), (1e9, 0.0), (1e9, 1e6), (5.0, 1e-12), (1.0001, 1e6), (7.0, 1.0)):
        assert 0 < gamma_of(mean, shape) < 1
    for mean, shape in ((1.0, 1.0), (math.nan, 1.0), (2.0, -1.0)):
        with pytest.raises(ConfigError):
            gamma_of(mean, shape)
    for uniform, mean in ((1.0, 2.0), (math.nan, 2.0), (0.5, 1e6)):
        with pytest.raises(ConfigError):
            trials_from_uniform(uniform, mean, 1.0)
    for invalid in (
        lambda: select_event(RUN, 1.0, "geometric"),
        lambda: select_event(dpa.GaussianDpEvent(math.nan), 2.0, "geometric"),
        lambda: pay_for_all(RUN, 0),
        lambda: pay_for_all(RUN, 10**400),
        lambda: draw_trials(RepeatAndSelectDpEvent(RUN, math.nan, 1.0)),
    ):
        with pytest.raises(EventError):
            invalid()
