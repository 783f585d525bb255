"""What a threshold takes of delta: taken off before any accountant is asked, and never forgotten."""

import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting.dp_event import (
    ComposedDpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    RepeatAndSelectDpEvent,
    SelfComposedDpEvent,
)
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_ndtr
from scipy.stats import norm

from rayprivacy.accounting.accountant import dominates, epsilon, figures, gdp_cost, plan_epsilon, plan_lines
from rayprivacy.accounting.events import (
    ThresholdedGaussianDpEvent,
    checked_leaves,
    delta_left,
    from_json,
    to_json,
    without_thresholds,
)
from rayprivacy.accounting.gaussian import mu_of, rho
from rayprivacy.accounting.loss import pld_epsilon
from rayprivacy.accounting.renyi import rdp
from rayprivacy.core.errors import EventError
from rayprivacy.core.units import Budget

GAUSS, COUNTS = GaussianDpEvent, ThresholdedGaussianDpEvent
DELTA = 1e-6
ACCOUNTANTS = ("gdp", "rdp", "pld")


def _tail(mu, epsilon):
    """The Gaussian's delta at any epsilon, also a negative one."""
    return math.exp(log_ndtr(mu / 2 - epsilon / mu)) - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))


def _delta_of_the_pair(mu, symbol, epsilon):
    """The larger of both directions, for a Gaussian that a symbol replaces with some probability."""
    shift = math.log1p(-symbol)
    with_the_unit = symbol + (1 - symbol) * _tail(mu, epsilon - shift)
    return max(with_the_unit, _tail(mu, epsilon + shift))


@pytest.mark.parametrize("name", ACCOUNTANTS)
@pytest.mark.parametrize(("releases", "each"), [(1, 5e-7), (3, 3e-7), (1, 9.99e-7), (900, 1e-9), (1, 1e-30)])
def test_every_accountant_takes_the_deltas_off_first(name, releases, each):
    events = [SelfComposedDpEvent(COUNTS(10.0, each), releases), GAUSS(3.0)]
    plain = [SelfComposedDpEvent(GAUSS(10.0), releases), GAUSS(3.0)]
    kept = DELTA - releases * each
    assert epsilon(events, DELTA, name) == pytest.approx(epsilon(plain, kept, name), rel=1e-9)
    assert epsilon(events, DELTA, name) >= epsilon(plain, DELTA, name)
    apart = [COUNTS(10.0, each)] * releases
    assert epsilon([*apart, GAUSS(3.0)], DELTA, name) == pytest.approx(epsilon(events, DELTA, name), rel=1e-9)


@pytest.mark.parametrize("releases", [1, 4])
@pytest.mark.parametrize("sigma", [0.7, 2.0, 9.0])
def test_the_epsilon_is_that_of_the_pair_which_the_event_stands_for(releases, sigma):
    """The pair by its own formula, with a symbol in any of the releases; what forgets the deltas is too little."""
    each = DELTA / (2 * releases)
    events = [SelfComposedDpEvent(COUNTS(sigma, each), releases)]
    found = epsilon(events, DELTA)
    symbol, mu = -math.expm1(releases * math.log1p(-each)), math.sqrt(releases) / sigma
    assert 0.98 * DELTA < _delta_of_the_pair(mu, symbol, found) <= DELTA
    forgotten = epsilon([SelfComposedDpEvent(GAUSS(sigma), releases)], DELTA)
    assert _delta_of_the_pair(mu, symbol, forgotten) > 1.4 * DELTA


@pytest.mark.parametrize("name", ACCOUNTANTS)
@pytest.mark.parametrize(
    "events",
    [
        [COUNTS(5.0, DELTA)],
        [COUNTS(5.0, 1.0)],
        [COUNTS(5.0, 6e-7), COUNTS(9.0, 4.1e-7)],
        [SelfComposedDpEvent(COUNTS(500.0, 1e-9), 1000)],  # each is little, and together they are all of it
        [SelfComposedDpEvent(SelfComposedDpEvent(COUNTS(1e9, 1e-37), 2**53), 2**53)],
        [GAUSS(5.0), ComposedDpEvent([GAUSS(5.0), COUNTS(5.0, DELTA)])],
    ],
)
def test_thresholds_that_take_all_of_delta_are_refused_in_one_sentence(name, events):
    with pytest.raises(EventError, match=r"^the thresholds take delta [^ ]+, and there is 1e-06 of it in all: give"):
        epsilon(events, DELTA, name)


def test_no_price_takes_a_threshold_whose_delta_was_not_taken_off():
    event = COUNTS(5.0, 1e-9)
    for price in (gdp_cost, rho, rdp, lambda event: pld_epsilon([(event, 1)], DELTA)):
        with pytest.raises(EventError):
            price(event)


@given(st.lists(st.tuples(st.floats(1e-30, 1e-7), st.integers(1, 50)), min_size=1, max_size=9))
def test_deltas_add_up_exactly_and_what_is_left_is_rounded_down(parts):
    events = [SelfComposedDpEvent(COUNTS(3.0, delta), times) for delta, times in parts]
    plain, taken = without_thresholds([ComposedDpEvent(events)])
    assert taken == sum(Fraction(delta) * times for delta, times in parts)
    assert {leaf for leaf, _ in checked_leaves(plain[0])} == {GAUSS(3.0)}
    assert sum(times for _, times in checked_leaves(plain[0])) == sum(times for _, times in parts)
    left = delta_left(1e-3, taken)
    assert Fraction(left) <= Fraction(1e-3) - taken < Fraction(math.nextafter(left, 1))


def test_other_events_are_left_as_they_are():
    events = [PoissonSampledDpEvent(0.1, GAUSS(2.0)), RepeatAndSelectDpEvent(GAUSS(2.0), 9.0, 1.0)]
    assert without_thresholds(events) == (events, 0)


def test_an_event_is_stored_as_what_it_is():
    event = COUNTS(2.0, 5e-7)
    assert to_json(event) == {"kind": "thresholded-gaussian", "noise_multiplier": 2.0, "delta": 5e-7}
    assert from_json(to_json(event)) == event


@pytest.mark.parametrize("delta", [0, 0.0, -1e-9, 1.5, math.nan, math.inf, True, "1e-6", None, 10**400])
def test_a_delta_that_is_none_is_refused(delta):
    with pytest.raises(EventError, match=r"event\.delta is "):
        to_json(COUNTS(2.0, delta))


@pytest.mark.parametrize("sigma", [0, math.nan, math.inf, True, None])
def test_a_threshold_does_not_hide_a_noise_that_is_none(sigma):
    with pytest.raises(EventError, match=r"event\.noise_multiplier is "):
        to_json(COUNTS(sigma, 1e-7))


@pytest.mark.parametrize(
    "trial",
    [COUNTS(9.0, 1e-9), ComposedDpEvent([GAUSS(9.0), SelfComposedDpEvent(COUNTS(9.0, 1e-9), 2)])],
)
def test_the_choice_of_the_best_trial_takes_none(trial):
    with pytest.raises(EventError, match="the choice of the best trial takes no release with one"):
        to_json(SelfComposedDpEvent(RepeatAndSelectDpEvent(trial, 9.0, 1.0), 2))
    with pytest.raises(EventError, match="the event is a PoissonSampledDpEvent: use one of"):
        to_json(PoissonSampledDpEvent(0.1, COUNTS(9.0, 1e-9)))


def test_a_line_of_a_plan_covers_the_same_release_alone():
    line = COUNTS(4.0, 1e-7)
    assert dominates(line, COUNTS(4.0, 1e-7))
    for other in (COUNTS(4.0, 2e-7), COUNTS(3.0, 1e-7), COUNTS(5.0, 1e-7), GAUSS(4.0), GAUSS(9.0)):
        assert not dominates(line, other)
        assert not dominates(other, line)


def test_a_plan_is_priced_without_what_its_thresholds_take():
    lines = plan_lines([COUNTS(4.0, 1e-7), SelfComposedDpEvent(COUNTS(4.0, 1e-7), 3), GAUSS(7.0)])
    assert sorted(times for _, times in lines) == [1, 4]
    assert plan_epsilon(lines, DELTA) == epsilon([SelfComposedDpEvent(GAUSS(4.0), 4), GAUSS(7.0)], 6e-7, "pld")
    found = figures(lines, DELTA)
    assert set(found.by) == {"pld", "rdp"}
    with pytest.raises(EventError, match="thresholds take delta 4e-07"):
        plan_epsilon(lines, 4e-7)


def _worst(budget, kept):
    """The most delta of an analyst who looks at a Gaussian release, and then takes the rest of its budget, or a symbol.

    Where the unit is in the corpus, the privacy loss of Gaussians of total mu^2 is normal, of mean mu^2 / 2 and
    variance mu^2. At each loss after the first release the analyst takes what gives more: the rest of the noise, or a
    threshold. `kept` is its delta by what noise was spent: one number, or what a comparison leaves at that point.
    """
    cap, gain = mu_of(budget) ** 2, []
    for part in (0.3, 0.5, 0.7, 0.9):
        first = part * cap
        losses = first / 2 + math.sqrt(first) * np.linspace(-12, 12, 40_001)
        chances = norm.pdf(losses, first / 2, math.sqrt(first))
        stop = np.maximum(0, -np.expm1(budget.epsilon - losses)) + kept(first)
        mu = math.sqrt(cap - first)
        shift = (budget.epsilon - losses) / mu
        more = np.exp(log_ndtr(mu / 2 - shift)) - np.exp(budget.epsilon - losses + log_ndtr(-mu / 2 - shift))
        both = more + kept(cap)
        gain.append(float((chances * np.maximum(stop, both)).sum() / chances.sum()))
    return max(gain)


@pytest.mark.parametrize("epsilon", [1.0, 3.0, 8.0])
def test_only_a_part_of_delta_that_is_fixed_holds_whatever_is_chosen_later(epsilon):
    """Taking off what deltas there are before each comparison lets the analyst reach almost twice the delta."""
    whole, rest = Budget(epsilon, DELTA), Budget(epsilon, DELTA / 2)
    assert _worst(whole, lambda spent: DELTA - _tail(math.sqrt(spent), epsilon)) > 1.9 * DELTA
    assert _worst(rest, lambda spent: DELTA / 2) <= DELTA * (1 + 1e-6)
