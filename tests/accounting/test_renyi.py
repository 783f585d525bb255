"""Renyi costs against dp-accounting and against 50-digit arithmetic: never below, hardly above, the same every time."""

import math
import time

import dp_accounting as dpa
import mpmath
import numpy as np
import pytest
from dp_accounting.dp_event import DpEvent, MixtureOfGaussiansDpEvent, RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.accounting.accountant import epsilon
from rayprivacy.accounting.events import MetricLocalDpEvent
from rayprivacy.accounting.renyi import ORDERS, best_order, epsilon_at, rdp, rdp_cap
from rayprivacy.core.errors import ConfigError, EventError
from rayprivacy.core.units import Budget


def _sampled(q: float, sigma: float) -> DpEvent:
    return dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(sigma))


def _library(event: DpEvent, orders: tuple[float, ...]) -> np.ndarray:
    return RdpAccountant(orders).compose(event).rdp


EVENTS = [
    dpa.GaussianDpEvent(0.7),
    dpa.LaplaceDpEvent(3.0),
    _sampled(0.01, 1.0),
    _sampled(0.3, 5.0),
    dpa.SelfComposedDpEvent(dpa.ComposedDpEvent([_sampled(0.01, 1.0), dpa.GaussianDpEvent(9.0)]), 50),
]


@pytest.mark.parametrize("event", EVENTS)
def test_costs_agree_with_the_library_and_are_rounded_up(event: DpEvent) -> None:
    theirs = _library(event, ORDERS)
    known = np.isfinite(theirs)
    ours = np.array(rdp(event))
    assert (ours[known] >= theirs[known] * (1 + 0.9e-9)).all()
    assert ours[known] == pytest.approx(theirs[known], rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 3.0, math.inf])
@pytest.mark.parametrize("mean", [1.5, 10.0, 500.0])
def test_the_best_of_many_trials_agrees_with_the_library(mean: float, shape: float) -> None:
    event = RepeatAndSelectDpEvent(dpa.SelfComposedDpEvent(_sampled(0.01, 1.0), 1000), mean, shape)
    theirs, ours = _library(event, ORDERS), np.array(rdp(event))
    assert (ours <= theirs * (1 + 1e-5)).all()
    least = compute_epsilon(ORDERS, theirs, 1e-5)[0]
    assert least * (1 - 1e-7) <= epsilon([event], 1e-5, "rdp") <= least * (1 + 1e-5)
    assert rdp(event, (8.0,)) == (rdp(event)[ORDERS.index(8.0)],)  # a single order is read off the full grid


def _truth(order: int, q: float, sigma: float) -> float:
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
def test_small_costs_are_not_below_the_truth(q: float, sigma: float, order: int) -> None:
    ours, truth = rdp(_sampled(q, sigma), (float(order),))[0], _truth(order, q, sigma)
    assert truth < ours <= truth * (1 + 1e-8) + 2e-11


@pytest.mark.parametrize(("order", "q", "sigma"), [(30_000, 1e-4, 1e5), (100_000, 1e-3, 1e6), (100_000, 1e-4, 1e5)])
def test_costs_at_high_orders_are_not_below_the_truth(order: int, q: float, sigma: float) -> None:
    """Logarithms of factorials are rounded at their own size, and the cost is a small difference of them."""
    assert _truth(order, q, sigma) < rdp(_sampled(q, sigma), (float(order),))[0]


def test_an_order_at_which_the_series_fails_takes_the_next_whole_one() -> None:
    event = _sampled(0.1, 0.5)
    assert math.isinf(_library(event, (1.1,))[0])
    at, whole = rdp(event, (1.1, 2.0))
    assert 0 < whole <= at <= whole * (1 + 1e-9) + 1e-9


def test_a_thousand_different_steps_are_computed_once() -> None:
    events = [dpa.SelfComposedDpEvent(_sampled(0.01, 1.0 + i / 1000), i + 1) for i in range(1000)]
    first = [rdp(event, (8.0, 16.0)) for event in events]
    start = time.process_time()
    assert [rdp(event, (8.0, 16.0)) for event in events] == first
    assert time.process_time() - start < 1.0


@given(st.floats(1.01, 5000), st.floats(0.01, 20), st.floats(1e-12, 0.1))
def test_the_cap_is_the_largest_cost_that_fits(order: float, eps: float, delta: float) -> None:
    try:
        cap = rdp_cap(order, Budget(eps, delta))
    except ConfigError:
        assert epsilon_at(0.0, order, delta) >= eps * (1 - 1e-9)
        return
    assert epsilon_at(cap, order, delta) <= eps < epsilon_at(cap * (1 + 1e-6) + 1e-9, order, delta) + 1e-12


def test_the_best_order_gives_the_epsilon_of_the_plan() -> None:
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
def test_what_has_no_cost_is_an_error_and_never_zero(event: DpEvent) -> None:
    for _ in range(2):  # the second time, nothing half-done was remembered
        with pytest.raises(EventError):
            rdp(event)


@pytest.mark.parametrize("order", [1.0, 0.5, math.nan, math.inf, True, 2e5])
def test_orders_out_of_range_are_refused(order: float) -> None:
    one, budget = dpa.GaussianDpEvent(1.0), Budget(1.0, 1e-6)
    for call in (lambda: rdp(one, (order,)), lambda: epsilon_at(1.0, order, 1e-6), lambda: rdp_cap(order, budget)):
        with pytest.raises(ConfigError, match="order is"):
            call()


def test_values_out_of_range_are_refused() -> None:
    for cost, delta in ((-1.0, 1e-6), (math.nan, 1e-6), (1.0, 0.0), (1.0, 1.0)):
        with pytest.raises(ConfigError):
            epsilon_at(cost, 2.0, delta)
    with pytest.raises(ConfigError):
        rdp_cap(1.5, Budget(0.1, 1e-6))
