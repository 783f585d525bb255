"""The closed Gaussian curve against dp-accounting: never below the truth, and no more than 1e-6 above it."""

import math

import dp_accounting as dpa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from rayprivacy.accounting.accountant import epsilon, gdp_cost, total_mu_squared
from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.accounting.gaussian import delta_of, epsilon_of, mu_of
from rayprivacy.core.errors import ConfigError, EventError
from rayprivacy.core.units import Budget


@pytest.mark.parametrize("delta", [1e-12, 1e-9, 1e-6, 1e-3, 0.1])
@pytest.mark.parametrize("sigma", [0.05, 0.2, 0.5, 1.0, 3.0, 10.0, 100.0, 1000.0])
def test_epsilon_agrees_with_dp_accounting_and_is_never_below(sigma: float, delta: float) -> None:
    truth = dpa.get_epsilon_gaussian(sigma, delta)
    ours = epsilon_of(1 / sigma, delta)
    assert ours >= truth * (1 - 1e-10) - 1e-11
    assert ours == pytest.approx(truth, rel=1e-6, abs=1e-9)


def test_delta_is_an_upper_bound_of_the_textbook_formula() -> None:
    for mu in (0.1, 0.5, 1.0, 2.0, 5.0):
        for eps in (0.0, 0.1, 1.0, 3.0, 10.0):
            truth = norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * norm.cdf(-mu / 2 - eps / mu)
            assert truth - 1e-15 <= delta_of(mu, eps) <= truth * (1 + 1e-6) + 1e-14


@given(st.floats(1e-4, 1e4), st.floats(1e-15, 0.9))
def test_mu_of_fits_and_is_the_largest(eps: float, delta: float) -> None:
    mu = mu_of(Budget(eps, delta))
    assert delta_of(mu, eps) <= delta < delta_of(mu * (1 + 1e-6), eps) * (1 + 1e-4)
    assert epsilon_of(mu, delta) <= eps * (1 + 1e-9) + 1e-11


@pytest.mark.parametrize(
    ("mu", "eps"), [(0.0, 1.0), (1e-300, 1.0), (1e-9, 1e-3), (1e6, 1.0), (1e8, 1e20), (1.0, 1e300)]
)
def test_extreme_values_stay_probabilities(mu: float, eps: float) -> None:
    assert 0 <= delta_of(mu, eps) <= 1


def test_values_out_of_range_are_refused() -> None:
    for call in (
        lambda: delta_of(math.nan, 1.0),
        lambda: delta_of(1.0, -1.0),
        lambda: epsilon_of(math.inf, 1e-6),
        lambda: epsilon_of(1.0, 0.0),
        lambda: sigma_for(0, Budget(1.0, 1e-6)),
        lambda: sigma_for(True, Budget(1.0, 1e-6)),
        lambda: epsilon([], 1e-6, "clt"),  # type: ignore[arg-type]
        lambda: epsilon([], 2.0, "rdp"),
    ):
        with pytest.raises(ConfigError):
            call()


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
