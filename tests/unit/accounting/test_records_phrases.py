"""From one privacy unit to another, and the papers' own figures, in which what they leave out shows."""

import math

import dp_accounting as dpa
import pytest
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rayprivacy.accounting import published
from rayprivacy.accounting.accountant import at_once, epsilon
from rayprivacy.accounting.events import MetricLocalDpEvent, document_epsilon, exact_epsilon, token_epsilon
from rayprivacy.accounting.gaussian import epsilon_of
from rayprivacy.accounting.published import phrase_report, record_sampling_event
from rayprivacy.core.errors import ConfigError, EventError


@pytest.mark.parametrize(("q", "k"), [(0.01, 5), (0.5, 40), (1e-6, 999), (0.3, 999)])
def test_the_weights_are_binomial(q, k):
    event = record_sampling_event(q, 1e3, k, 1).event
    assert isinstance(event, MixtureOfGaussiansDpEvent)
    assert event.sampling_probs == pytest.approx(stats.binom.pmf(range(k + 1), k, q), rel=1e-8, abs=1e-300)
    assert math.fsum(event.sampling_probs) == pytest.approx(1, abs=1e-12)


def test_the_stand_in_of_a_mixture_costs_more():
    event = record_sampling_event(0.01, 2.0, 3, 50)
    stand_in = dpa.SelfComposedDpEvent(at_once(event.event), 50)
    assert epsilon([event], 1e-5, "pld") < epsilon([stand_in], 1e-5, "pld") < epsilon([stand_in], 1e-5, "rdp")


def test_phrases_cost_by_the_shards_they_occur_in():
    report = phrase_report({"a": 1, "b": 1, "c": 4, "d": 0}, bound=5, queries=100, sigma_at_bound=10.0, delta=1e-6)
    rare, often = epsilon_of(1 / 5, 1e-6), epsilon_of(4 / 5, 1e-6)
    assert report.at_bound == pytest.approx(epsilon_of(1.0, 1e-6))
    assert report.worst == pytest.approx(often)
    assert report.average == pytest.approx((2 * rare + often) / 4)
    assert report.histogram == ((0, 1), (1, 2), (4, 1))
    assert report.releasable is False


@pytest.mark.parametrize("shards", [{}, {"secret": 6}, {"secret": -1}, {"secret": True}, {7: 1.0}, {7: 10**400}])
def test_a_phrase_outside_the_bound_is_refused_and_not_quoted(shards):
    with pytest.raises(ConfigError) as raised:
        phrase_report(shards, 5, 100, 10.0, 1e-6)
    assert "secret" not in str(raised.value)


def test_values_out_of_range_are_refused():
    for report in ((0, 1, 9.0, 0.1), (5, 10**400, 9.0, 0.1), (5, 1, math.nan, 0.1), (5, 1, 9.0, 0.0)):
        with pytest.raises(ConfigError):
            phrase_report({"a": 1}, *report)
    for k in (1000, True):
        with pytest.raises(ConfigError):
            record_sampling_event(0.1, 1.0, k, 1)
    for q, sigma, steps in ((math.nan, 1.0, 1), (0.1, math.nan, 1), (0.1, 1.0, 10**400)):
        with pytest.raises(EventError):
            record_sampling_event(q, sigma, 5, steps)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(1, 10**6))
def test_the_epsilon_of_a_token_costs_no_more_than_was_wanted(wanted, diameter, tokens):
    each = token_epsilon(wanted, diameter, tokens)
    assert exact_epsilon(MetricLocalDpEvent(each, diameter, tokens)) <= wanted
    more = MetricLocalDpEvent(math.nextafter(math.nextafter(math.nextafter(each, 1e9), 1e9), 1e9), diameter, tokens)
    assert exact_epsilon(more) > wanted


def test_metric_privacy_is_priced_by_the_document_and_composed_by_nobody():
    event = MetricLocalDpEvent(2.0, 1.5, 100)
    assert document_epsilon(event) == 300
    assert document_epsilon(MetricLocalDpEvent(1e200, 1e200, 1)) == math.inf
    for accountant in ("gdp", "rdp", "pld"):
        for events in ([event], [dpa.NonPrivateDpEvent(), event], [dpa.SelfComposedDpEvent(event, 2)]):
            with pytest.raises(EventError, match="no accountant"):
                epsilon(events, 1e-6, accountant)
        assert epsilon([dpa.NonPrivateDpEvent()], 1e-6, accountant) == math.inf


STEP = dpa.PoissonSampledDpEvent(0.01, dpa.GaussianDpEvent(1.0))


def test_seqpate_is_the_best_real_order_and_above_ours():
    found = published.votes_as_published("SeqPATE (2022)", 1000, 50.0, 1e-6).epsilon
    grid = (1 + 10 ** (k / 1000) for k in range(-3000, 4000))
    assert found == pytest.approx(min(1000 * a / 5000 + math.log(1e6) / (a - 1) for a in grid), rel=1e-5)
    assert found > epsilon_of(math.sqrt(1000) / 50.0, 1e-6)


def test_dpsgd_is_the_classic_conversion():
    accountant = RdpAccountant().compose(STEP, 1000)
    classic = min(accountant.rdp + math.log(1e5) / (accountant.orders - 1))
    assert published.dpsgd(STEP, 1000, 1e-5).epsilon == pytest.approx(classic, rel=1e-4)
    assert classic > epsilon([dpa.SelfComposedDpEvent(STEP, 1000)], 1e-5, "rdp")


def test_stages_alone_and_noise_as_printed():
    alone = published.two_stage([(STEP, 500), (STEP, 1000)], 1e-5)
    assert [figure.label[-7:] for figure in alone] == ["1 alone", "2 alone"]
    assert alone[0].epsilon < alone[1].epsilon == published.dpsgd(STEP, 1000, 1e-5).epsilon
    assert published.edpsgd([(STEP, 500), (STEP, 500)], 1e-5).epsilon == pytest.approx(alone[1].epsilon)
    assert published.santext(2.0).epsilon == published.select(2.0).epsilon == 2.0
