"""Gaussian curves against dp-accounting, costs in fractions, and rho: exact, without order, never below the truth."""

import math
import random
from fractions import Fraction
from typing import Any

import dp_accounting as dpa
import pytest
from dp_accounting.dp_event import DpEvent, MixtureOfGaussiansDpEvent
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from rayprivacy.accounting.accountant import epsilon, gdp_cost, total_mu_squared
from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.accounting.events import round_up, total
from rayprivacy.accounting.gaussian import delta_of, epsilon_of, epsilon_of_rho, mu_of, rho, rho_cap
from rayprivacy.core.errors import ConfigError, EventError
from rayprivacy.core.units import Budget


@pytest.mark.parametrize("delta", [1e-12, 1e-9, 1e-6, 1e-3, 0.1])
@pytest.mark.parametrize("sigma", [0.05, 0.2, 0.5, 1.0, 3.0, 10.0, 100.0, 1000.0])
def test_epsilon_agrees_with_dp_accounting_and_is_never_below(sigma: float, delta: float) -> None:
    truth = dpa.get_epsilon_gaussian(sigma, delta)
    ours = epsilon_of(1 / sigma, delta)
    assert ours >= truth * (1 - 1e-10) - 1e-11
    assert ours == pytest.approx(truth, rel=1e-6, abs=1e-9)


def test_delta_is_an_upper_bound_of_the_textbook_formula_and_a_probability() -> None:
    for mu in (0.1, 0.5, 1.0, 2.0, 5.0):
        for eps in (0.0, 0.1, 1.0, 3.0, 10.0):
            truth = norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * norm.cdf(-mu / 2 - eps / mu)
            assert truth - 1e-15 <= delta_of(mu, eps) <= truth * (1 + 1e-6) + 1e-14
    for mu, eps in ((0.0, 1.0), (1e-300, 1.0), (1e-9, 1e-3), (1e6, 1.0), (1e8, 1e20), (1.0, 1e300)):
        assert 0 <= delta_of(mu, eps) <= 1


@given(st.floats(1e-4, 1e4), st.floats(1e-15, 0.9))
def test_mu_of_fits_and_is_the_largest(eps: float, delta: float) -> None:
    mu = mu_of(Budget(eps, delta))
    assert delta_of(mu, eps) <= delta < delta_of(mu * (1 + 1e-6), eps) * (1 + 1e-4)
    assert epsilon_of(mu, delta) <= eps * (1 + 1e-9) + 1e-11


@given(st.integers(1, 10**7), st.floats(0.01, 100), st.floats(1e-12, 0.1))
def test_calibration_is_admitted_exactly(queries: int, eps: float, delta: float) -> None:
    budget = Budget(eps, delta)
    sigma = sigma_for(queries, budget)
    cap = mu_of(budget) ** 2
    event = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(sigma), queries)
    assert gdp_cost(event) <= cap < gdp_cost(dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(sigma), queries * 2))
    assert queries / (sigma * (1 - 1e-8)) ** 2 > cap
    assert total_mu_squared([event]) == pytest.approx(cap, rel=1e-8)


def test_accountants_agree_on_plain_gaussians_and_sum_what_they_get() -> None:
    events = [dpa.GaussianDpEvent(5.0), dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(10.0), 4)]
    exact = epsilon(events, 1e-6)
    assert exact == epsilon(list(reversed(events)), 1e-6)
    assert exact == pytest.approx(epsilon_of(math.sqrt(0.08), 1e-6), rel=1e-12)
    assert epsilon(events, 1e-6, "pld") == pytest.approx(exact, rel=1e-2)
    assert exact < epsilon(events, 1e-6, "rdp") < 1.3 * exact
    assert epsilon([], 1e-6) == epsilon([], 1e-6, "pld") == 0


def test_what_an_accountant_cannot_do_is_an_error_not_a_number() -> None:
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
def test_costs_are_exact_and_have_no_order(runs: list[tuple[float, int]], shuffle: random.Random) -> None:
    events = [dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(sigma), n) for sigma, n in runs]
    exact = sum((n / Fraction(sigma) ** 2 for sigma, n in runs), Fraction(0))
    assert gdp_cost(dpa.ComposedDpEvent(events)) == exact == 2 * rho(dpa.ComposedDpEvent(events))
    shuffled = list(events)
    shuffle.shuffle(shuffled)
    assert total_mu_squared(shuffled) == total_mu_squared(events) == round_up(exact)
    assert total_mu_squared([events[0]]) >= gdp_cost(events[0])


def test_rounding_up_is_tight_and_never_raises() -> None:
    third = Fraction(1, 3)
    assert math.nextafter(round_up(third), 0) < third <= round_up(third)
    assert round_up(Fraction(10) ** 400) == math.inf
    assert round_up(Fraction(1, 10**400)) > 0
    assert total([]) == 0
    nested: DpEvent = dpa.GaussianDpEvent(2e-100)
    for _ in range(7):
        nested = dpa.SelfComposedDpEvent(nested, 2**53)
    assert total_mu_squared([nested]) == math.inf


def test_laplace_counts_as_pure_and_the_rest_is_refused() -> None:
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
def test_the_epsilon_of_rho_is_an_upper_bound_and_near_the_least(value: float, delta: float) -> None:
    found = epsilon_of_rho(value, delta)
    assert found >= epsilon_of(math.sqrt(2 * value), delta)  # Gaussian noise of this rho exists and costs this much
    grid = (1 + 10 ** (k / 200) for k in range(-800, 2400))
    direct = min(value * a + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1) for a in grid)
    assert found <= max(0.0, direct) * (1 + 1e-9) + 1e-12
    assert found <= value + 2 * math.sqrt(value * math.log(1 / delta))


@given(st.floats(0.01, 30), st.floats(1e-12, 0.1))
def test_the_cap_fits_and_is_the_largest(eps: float, delta: float) -> None:
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
def test_values_out_of_range_are_refused(call: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError):
        call(*arguments)
