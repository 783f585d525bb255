"""Gaussian curves, costs in fractions, Renyi costs and numbers of trials against known ones: never below the truth."""

import itertools
import math
from fractions import Fraction

import dp_accounting as dpa
import mpmath
import numpy as np
import pytest
from dp_accounting.dp_event import DpEvent, MixtureOfGaussiansDpEvent, RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import norm

from rayprivacy.accounting.accountant import epsilon, gdp_cost, total_mu_squared
from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.accounting.events import MetricLocalDpEvent, round_up, total
from rayprivacy.accounting.gaussian import delta_of, epsilon_of, epsilon_of_rho, mu_of, rho, rho_cap
from rayprivacy.accounting.renyi import ORDERS, best_order, epsilon_at, rdp, rdp_cap
from rayprivacy.accounting.selection import (
    gamma_of,
    pay_for_all,
    select_event,
    trial_probabilities,
    trials_from_uniform,
)
from rayprivacy.core.errors import ConfigError, EventError
from rayprivacy.core.units import Budget
from rayprivacy.release.noise import draw_trials


@pytest.mark.parametrize("delta", [1e-12, 1e-9, 1e-6, 1e-3, 0.1])
@pytest.mark.parametrize("sigma", [0.05, 0.2, 0.5, 1.0, 3.0, 10.0, 100.0, 1000.0])
def test_epsilon_agrees_with_dp_accounting_and_is_never_below(sigma, delta):
    truth = dpa.get_epsilon_gaussian(sigma, delta)
    ours = epsilon_of(1 / sigma, delta)
    assert ours >= truth * (1 - 1e-10) - 1e-11
    assert ours == pytest.approx(truth, rel=1e-6, abs=1e-9)


def test_delta_is_an_upper_bound_of_the_textbook_formula_and_a_probability():
    for mu in (0.1, 0.5, 1.0, 2.0, 5.0):
        for eps in (0.0, 0.1, 1.0, 3.0, 10.0):
            truth = norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * norm.cdf(-mu / 2 - eps / mu)
            assert truth - 1e-15 <= delta_of(mu, eps) <= truth * (1 + 1e-6) + 1e-14
    for mu, eps in ((0.0, 1.0), (1e-300, 1.0), (1e-9, 1e-3), (1e6, 1.0), (1e8, 1e20), (1.0, 1e300)):
        assert 0 <= delta_of(mu, eps) <= 1


@given(st.floats(1e-4, 1e4), st.floats(1e-15, 0.9))
def test_mu_of_fits_and_is_the_largest(eps, delta):
    mu = mu_of(Budget(eps, delta))
    assert delta_of(mu, eps) <= delta < delta_of(mu * (1 + 1e-6), eps) * (1 + 1e-4)
    assert epsilon_of(mu, delta) <= eps * (1 + 1e-9) + 1e-11


@given(st.integers(1, 10**7), st.floats(0.01, 100), st.floats(1e-12, 0.1))
def test_calibration_is_admitted_exactly(queries, eps, delta):
    budget = Budget(eps, delta)
    sigma = sigma_for(queries, budget)
    cap = mu_of(budget) ** 2
    event = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(sigma), queries)
    assert gdp_cost(event) <= cap < gdp_cost(dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(sigma), queries * 2))
    assert queries / (sigma * (1 - 1e-8)) ** 2 > cap
    assert total_mu_squared([event]) == pytest.approx(cap, rel=1e-8)


def test_accountants_agree_on_plain_gaussians_and_sum_what_they_get():
    events = [dpa.GaussianDpEvent(5.0), dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(10.0), 4)]
    exact = epsilon(events, 1e-6)
    assert exact == epsilon(list(reversed(events)), 1e-6)
    assert exact == pytest.approx(epsilon_of(math.sqrt(0.08), 1e-6), rel=1e-12)
    assert epsilon(events, 1e-6, "pld") == pytest.approx(exact, rel=1e-2)
    assert exact < epsilon(events, 1e-6, "rdp") < 1.3 * exact
    assert epsilon([], 1e-6) == epsilon([], 1e-6, "pld") == 0


def test_what_an_accountant_cannot_do_is_an_error_not_a_number():
    assert epsilon([dpa.NonPrivateDpEvent()], 1e-6, "rdp") == math.inf
    for event in (dpa.GaussianDpEvent(0.05), dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(1.0), 10**6)):
        with pytest.raises(EventError, match="'pld' needs"):
            epsilon([event], 1e-6, "pld")
    selected = dpa.dp_event.RepeatAndSelectDpEvent(dpa.GaussianDpEvent(1.0), 10.0, 1.0)
    assert epsilon([selected], 1e-6, "rdp") > epsilon([dpa.GaussianDpEvent(1.0)], 1e-6, "rdp")
    with pytest.raises(EventError, match="use 'rdp'"):
        epsilon([selected], 1e-6, "pld")
    with pytest.raises(EventError):
        epsilon([dpa.GaussianDpEvent(math.nan)], 1e-6, "rdp")


RUNS = st.lists(st.tuples(st.floats(1e-3, 1e6), st.integers(1, 10**9)), min_size=1, max_size=8)


@given(RUNS, st.randoms())
def test_costs_are_exact_and_have_no_order(runs, shuffle):
    events = [dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(sigma), n) for sigma, n in runs]
    exact = sum((n / Fraction(sigma) ** 2 for sigma, n in runs), Fraction(0))
    assert gdp_cost(dpa.ComposedDpEvent(events)) == exact == 2 * rho(dpa.ComposedDpEvent(events))
    shuffled = list(events)
    shuffle.shuffle(shuffled)
    assert total_mu_squared(shuffled) == total_mu_squared(events) == round_up(exact)
    assert total_mu_squared([events[0]]) >= gdp_cost(events[0])


def test_rounding_up_is_tight_and_never_raises():
    third = Fraction(1, 3)
    assert math.nextafter(round_up(third), 0) < third <= round_up(third)
    assert round_up(Fraction(10) ** 400) == math.inf
    assert round_up(Fraction(1, 10**400)) > 0
    assert total([]) == 0
    nested: DpEvent = dpa.GaussianDpEvent(2e-100)
    for _ in range(7):
        nested = dpa.SelfComposedDpEvent(nested, 2**53)
    assert total_mu_squared([nested]) == math.inf


def test_laplace_counts_as_pure_and_the_rest_is_refused():
    assert rho(dpa.SelfComposedDpEvent(dpa.LaplaceDpEvent(4.0), 10)) == Fraction(10, 32)
    for event in (
        dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(1.0)),
        dpa.NonPrivateDpEvent(),
        MixtureOfGaussiansDpEvent(1.0, (1.0,), (1.0,)),
        dpa.LaplaceDpEvent(math.nan),
    ):
        for cost in (rho, gdp_cost):
            with pytest.raises(EventError):
                cost(event)


@given(st.floats(1e-8, 1e4), st.floats(1e-15, 0.5))
def test_the_epsilon_of_rho_is_an_upper_bound_and_near_the_least(value, delta):
    found = epsilon_of_rho(value, delta)
    assert found >= epsilon_of(math.sqrt(2 * value), delta)  # Gaussian noise of this rho exists and costs this much
    grid = (1 + 10 ** (k / 200) for k in range(-800, 2400))
    direct = min(value * a + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1) for a in grid)
    assert found <= max(0.0, direct) * (1 + 1e-9) + 1e-12
    assert found <= value + 2 * math.sqrt(value * math.log(1 / delta))


@given(st.floats(0.01, 30), st.floats(1e-12, 0.1))
def test_the_cap_fits_and_is_the_largest(eps, delta):
    cap = rho_cap(Budget(eps, delta))
    assert epsilon_of_rho(cap, delta) <= eps <= epsilon_of_rho(cap * (1 + 1e-6), delta) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        *((delta_of, pair) for pair in ((math.nan, 1.0), (1.0, -1.0))),
        *((epsilon_of, pair) for pair in ((math.inf, 1e-6), (1.0, 0.0))),
        *((epsilon_of_rho, pair) for pair in ((-1.0, 1e-6), (math.nan, 1e-6), (1, 1))),
        *((sigma_for, (queries, Budget(1.0, 1e-6))) for queries in (0, True)),
        *((epsilon, wrong) for wrong in (([], 1e-6, "clt"), ([], 2.0, "rdp"))),
    ],
)
def test_values_out_of_range_are_refused(call, arguments):
    with pytest.raises(ConfigError):
        call(*arguments)


def _sampled(q, sigma):
    return dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(sigma))


def _library(event, orders):
    return RdpAccountant(orders).compose(event).rdp


EVENTS = [
    dpa.GaussianDpEvent(0.7),
    dpa.LaplaceDpEvent(3.0),
    _sampled(0.01, 1.0),
    _sampled(0.3, 5.0),
    dpa.SelfComposedDpEvent(dpa.ComposedDpEvent([_sampled(0.01, 1.0), dpa.GaussianDpEvent(9.0)]), 50),
]


@pytest.mark.parametrize("event", EVENTS)
def test_costs_agree_with_the_library_and_are_rounded_up(event):
    theirs = _library(event, ORDERS)
    known = np.isfinite(theirs)
    ours = np.array(rdp(event))
    assert (ours[known] >= theirs[known] * (1 + 0.9e-9)).all()
    assert ours[known] == pytest.approx(theirs[known], rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 3.0, math.inf])
@pytest.mark.parametrize("mean", [1.5, 10.0, 500.0])
def test_the_best_of_many_trials_agrees_with_the_library(mean, shape):
    event = RepeatAndSelectDpEvent(dpa.SelfComposedDpEvent(_sampled(0.01, 1.0), 1000), mean, shape)
    theirs, ours = _library(event, ORDERS), np.array(rdp(event))
    assert (ours <= theirs * (1 + 1e-5)).all()
    least = compute_epsilon(ORDERS, theirs, 1e-5)[0]
    assert least * (1 - 1e-7) <= epsilon([event], 1e-5, "rdp") <= least * (1 + 1e-5)
    assert rdp(event, (8.0,)) == (rdp(event)[ORDERS.index(8.0)],)  # a single order is read off the full grid


def _truth(order, q, sigma):
    """In 50 digits; about order * q terms count."""
    with mpmath.workdps(50):
        p, s = mpmath.mpf(q), mpmath.mpf(sigma)
        terms = (
            mpmath.binomial(order, k) * p**k * (1 - p) ** (order - k) * mpmath.expm1((k * k - k) / (2 * s * s))
            for k in range(2, min(order + 1, 400))
        )
        return float(mpmath.log1p(mpmath.fsum(terms)) / (order - 1))


@pytest.mark.parametrize(("q", "sigma"), [(1e-3, 1.0), (1e-5, 1.0), (1e-8, 0.8), (1e-8, 50.0), (0.5, 1e3)])
@pytest.mark.parametrize("order", [2, 5, 32])
def test_small_costs_are_not_below_the_truth(q, sigma, order):
    ours, truth = rdp(_sampled(q, sigma), (float(order),))[0], _truth(order, q, sigma)
    assert truth < ours <= truth * (1 + 1e-8) + 2e-11


@pytest.mark.parametrize(("order", "q", "sigma"), [(30_000, 1e-4, 1e5), (100_000, 1e-3, 1e6), (100_000, 1e-4, 1e5)])
def test_costs_at_high_orders_are_not_below_the_truth(order, q, sigma):
    """Logarithms of factorials are rounded at their own size, and the cost is a small difference of them."""
    assert _truth(order, q, sigma) < rdp(_sampled(q, sigma), (float(order),))[0]


def test_an_order_at_which_the_series_fails_takes_the_next_whole_one():
    event = _sampled(0.1, 0.5)
    assert math.isinf(_library(event, (1.1,))[0])
    at, whole = rdp(event, (1.1, 2.0))
    assert 0 < whole <= at <= whole * (1 + 1e-9) + 1e-9


@given(st.floats(1.01, 5000), st.floats(0.01, 20), st.floats(1e-12, 0.1))
def test_the_cap_is_the_largest_cost_that_fits(order, eps, delta):
    try:
        cap = rdp_cap(order, Budget(eps, delta))
    except ConfigError:
        assert epsilon_at(0.0, order, delta) >= eps * (1 - 1e-9)
        return
    assert epsilon_at(cap, order, delta) <= eps < epsilon_at(cap * (1 + 1e-6) + 1e-9, order, delta) + 1e-12


def test_the_best_order_gives_the_epsilon_of_the_plan():
    plan = [dpa.SelfComposedDpEvent(_sampled(0.01, 1.0), 1000)]
    order = best_order(plan, 1e-5)
    assert epsilon_at(rdp(plan[0], (order,))[0], order, 1e-5) == epsilon(plan, 1e-5, "rdp")
    assert epsilon(plan, 1e-5, "rdp") == pytest.approx(2.101, abs=1e-3)


NO_COST = [
    *(MixtureOfGaussiansDpEvent(1.0, (0.0, 1.0), (0.5, 0.5)), MetricLocalDpEvent(1.0, 1.0, 1), dpa.NonPrivateDpEvent()),
    *(dpa.GaussianDpEvent(math.nan), _sampled(0.5, 1e-100), RepeatAndSelectDpEvent(dpa.NonPrivateDpEvent(), 10.0, 1.0)),
    dpa.ComposedDpEvent([dpa.GaussianDpEvent(1.0), dpa.NonPrivateDpEvent()]),
]


@pytest.mark.parametrize("event", NO_COST)
def test_what_has_no_cost_is_an_error_and_never_zero(event):
    for _ in range(2):  # the second time, nothing half-done was remembered
        with pytest.raises(EventError):
            rdp(event)


@pytest.mark.parametrize("order", [1.0, 0.5, math.nan, math.inf, True, 2e5])
def test_orders_out_of_range_are_refused(order):
    one, budget = dpa.GaussianDpEvent(1.0), Budget(1.0, 1e-6)
    for call in (lambda: rdp(one, (order,)), lambda: epsilon_at(1.0, order, 1e-6), lambda: rdp_cap(order, budget)):
        with pytest.raises(ConfigError, match="order is"):
            call()


def test_costs_out_of_range_are_refused():
    for cost, delta in ((-1.0, 1e-6), (math.nan, 1e-6), (1.0, 0.0), (1.0, 1.0)):
        with pytest.raises(ConfigError):
            epsilon_at(cost, 2.0, delta)
    with pytest.raises(ConfigError):
        rdp_cap(1.5, Budget(0.1, 1e-6))


CASES = [(mean, shape) for mean in (1.05, 3.0, 40.0) for shape in (0.0, 0.3, 1.0, 2.5, math.inf)]
RUN = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.01, dpa.GaussianDpEvent(1.0)), 1000)


def _chance(mean, shape, k):
    """P[K = k] by scipy."""
    if shape == math.inf:
        return float(stats.poisson.pmf(k, mean))
    gamma = gamma_of(mean, shape)
    if shape == 0:
        return float(stats.logser.pmf(k, 1 - gamma))
    return float(stats.nbinom.pmf(k, shape, gamma) / stats.nbinom.sf(0, shape, gamma)) if k else 0.0


@pytest.mark.parametrize(("mean", "shape"), CASES)
def test_probabilities_agree_with_scipy_and_have_the_mean(mean, shape):
    pairs = list(itertools.islice(trial_probabilities(mean, shape), 5000))
    assert pairs[0][0] == (0 if shape == math.inf else 1)
    for k, p in pairs[:60]:
        assert p == pytest.approx(_chance(mean, shape, k), rel=1e-8, abs=1e-300)
    assert math.fsum(p for _, p in pairs) == pytest.approx(1, abs=1e-9)
    assert math.fsum(k * p for k, p in pairs) == pytest.approx(mean, rel=1e-7)


def _p_value(drawn, mean, shape):
    chances = dict(itertools.islice(trial_probabilities(mean, shape), 500))
    cells = [k for k, p in chances.items() if p * len(drawn) >= 10]
    observed, expected = [drawn.count(k) for k in cells], [chances[k] * len(drawn) for k in cells]
    rest = len(drawn) - sum(observed), len(drawn) - sum(expected)
    return float(stats.chisquare([*observed, rest[0]], [*expected, rest[1]], sum_check=False).pvalue)


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, math.inf])
def test_drawn_numbers_fit_the_distribution_and_no_other_mean(shape):
    event = RepeatAndSelectDpEvent(RUN, 6.0, shape)
    drawn = [draw_trials(event) for _ in range(12_000)]  # 4,000 let one run in a thousand pass with the other mean
    assert _p_value(drawn, 6.0, shape) > 1e-6
    assert _p_value(drawn, 7.8, shape) < 1e-6


@pytest.mark.parametrize(("mean", "shape"), CASES)
def test_quantiles_are_the_inverse_of_the_sum(mean, shape):
    pairs = list(itertools.islice(trial_probabilities(mean, shape), 200))
    below = 0.0
    for k, p in pairs[:20]:
        if p > 1e-9:
            assert trials_from_uniform(below + p / 2, mean, shape) == k
        below += p
    assert trials_from_uniform(Fraction(0), mean, shape) == pairs[0][0]
    assert trials_from_uniform(Fraction(2**256 - 1, 2**256), mean, shape) > mean


def test_the_winner_costs_less_than_all_trials():
    alone, every = epsilon([RUN], 1e-5, "rdp"), epsilon([pay_for_all(RUN, 10)], 1e-5, "rdp")
    assert alone == pytest.approx(2.10, abs=0.01)
    assert every == pytest.approx(6.7, abs=0.1)
    for distribution in ("poisson", "geometric", "logarithmic"):
        assert 3.4 < epsilon([select_event(RUN, 10.0, distribution)], 1e-5, "rdp") < 4.4
    halfway = epsilon([select_event(RUN, 10.0, "negative-binomial", 0.5)], 1e-5, "rdp")
    assert halfway < epsilon([select_event(RUN, 10.0, "geometric")], 1e-5, "rdp")


def test_what_no_search_can_be_is_refused():
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
