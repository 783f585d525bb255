"""From one privacy unit to another: users with several records, phrases in several shards."""

import math

import dp_accounting as dpa
import pytest
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rayprivacy.accounting.accountant import at_once, epsilon
from rayprivacy.accounting.events import MetricLocalDpEvent, document_epsilon, exact_epsilon, token_epsilon
from rayprivacy.accounting.gaussian import epsilon_of
from rayprivacy.accounting.published import phrase_report, record_sampling_event
from rayprivacy.core.errors import ConfigError, EventError


@pytest.mark.parametrize(("q", "k"), [(0.01, 5), (0.5, 40), (1e-6, 999), (0.3, 999)])
def test_the_weights_are_binomial(q: float, k: int) -> None:
    event = record_sampling_event(q, 1e3, k, 1).event
    assert isinstance(event, MixtureOfGaussiansDpEvent)
    assert event.sampling_probs == pytest.approx(stats.binom.pmf(range(k + 1), k, q), rel=1e-8, abs=1e-300)
    assert math.fsum(event.sampling_probs) == pytest.approx(1, abs=1e-12)


def test_the_stand_in_of_a_mixture_costs_more() -> None:
    event = record_sampling_event(0.01, 2.0, 3, 50)
    stand_in = dpa.SelfComposedDpEvent(at_once(event.event), 50)
    assert epsilon([event], 1e-5, "pld") < epsilon([stand_in], 1e-5, "pld") < epsilon([stand_in], 1e-5, "rdp")


def test_phrases_cost_by_the_shards_they_occur_in() -> None:
    report = phrase_report({"a": 1, "b": 1, "c": 4, "d": 0}, bound=5, queries=100, sigma_at_bound=10.0, delta=1e-6)
    rare, often = epsilon_of(1 / 5, 1e-6), epsilon_of(4 / 5, 1e-6)
    assert report.at_bound == pytest.approx(epsilon_of(1.0, 1e-6))
    assert report.worst == pytest.approx(often)
    assert report.average == pytest.approx((2 * rare + often) / 4)
    assert report.histogram == ((0, 1), (1, 2), (4, 1))
    assert report.releasable is False


@pytest.mark.parametrize("shards", [{}, {"secret": 6}, {"secret": -1}, {"secret": True}, {7: 1.0}, {7: 10**400}])
def test_a_phrase_outside_the_bound_is_refused_and_not_quoted(shards: dict[str, int]) -> None:
    with pytest.raises(ConfigError) as raised:
        phrase_report(shards, 5, 100, 10.0, 1e-6)
    assert "secret" not in str(raised.value)


def test_values_out_of_range_are_refused() -> None:
    for wrong in (
        lambda: phrase_report({"a": 1}, 0, 100, 10.0, 1e-6),
        lambda: phrase_report({"a": 1}, 5, 10**400, 10.0, 1e-6),
        lambda: phrase_report({"a": 1}, 5, 100, math.nan, 1e-6),
        lambda: phrase_report({"a": 1}, 5, 100, 10.0, 0.0),
        lambda: record_sampling_event(0.1, 1.0, 1000, 1),
        lambda: record_sampling_event(0.1, 1.0, True, 1),
    ):
        with pytest.raises(ConfigError):
            wrong()
    for invalid in (
        lambda: record_sampling_event(math.nan, 1.0, 5, 1),
        lambda: record_sampling_event(0.1, math.nan, 5, 1),
        lambda: record_sampling_event(0.1, 1.0, 5, 10**400),
    ):
        with pytest.raises(EventError):
            invalid()


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(1, 10**6))
def test_the_epsilon_of_a_token_costs_no_more_than_was_wanted(wanted: float, diameter: float, tokens: int) -> None:
    each = token_epsilon(wanted, diameter, tokens)
    assert exact_epsilon(MetricLocalDpEvent(each, diameter, tokens)) <= wanted
    more = MetricLocalDpEvent(math.nextafter(math.nextafter(math.nextafter(each, 1e9), 1e9), 1e9), diameter, tokens)
    assert exact_epsilon(more) > wanted


def test_metric_privacy_is_priced_by_the_document_and_composed_by_nobody() -> None:
    event = MetricLocalDpEvent(2.0, 1.5, 100)
    assert document_epsilon(event) == 300
    assert document_epsilon(MetricLocalDpEvent(1e200, 1e200, 1)) == math.inf
    for accountant in ("gdp", "rdp", "pld"):
        for events in ([event], [dpa.NonPrivateDpEvent(), event], [dpa.SelfComposedDpEvent(event, 2)]):
            with pytest.raises(EventError, match="no accountant"):
                epsilon(events, 1e-6, accountant)
        assert epsilon([dpa.NonPrivateDpEvent()], 1e-6, accountant) == math.inf
