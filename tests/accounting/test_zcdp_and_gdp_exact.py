"""Costs in fractions: exact, without order; and the conversion of rho, a bound that holds."""

import math
import random
from fractions import Fraction

import dp_accounting as dpa
import pytest
from dp_accounting.dp_event import DpEvent, MixtureOfGaussiansDpEvent
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.accounting.accountant import gdp_cost, total_mu_squared
from rayprivacy.accounting.events import round_up, total
from rayprivacy.accounting.gaussian import epsilon_of, epsilon_of_rho, rho, rho_cap
from rayprivacy.core.errors import ConfigError, EventError
from rayprivacy.core.units import Budget

sigmas = st.floats(1e-3, 1e6)


@given(st.lists(st.tuples(sigmas, st.integers(1, 10**9)), min_size=1, max_size=8), st.randoms())
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
        with pytest.raises(EventError):
            rho(event)
        with pytest.raises(EventError):
            gdp_cost(event)


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


def test_values_out_of_range_are_refused() -> None:
    assert epsilon_of_rho(0.0, 1e-6) == 0
    for cost, delta in ((-1.0, 1e-6), (math.nan, 1e-6), (1, 1)):
        with pytest.raises(ConfigError):
            epsilon_of_rho(cost, delta)
