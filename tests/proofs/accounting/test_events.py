"""The event codec, and plans made of events: nothing else gets in, and nothing covers what costs more."""

import contextlib
import json
import math

import dp_accounting as dpa
import pytest
from dp_accounting.dp_event import DpEvent, MixtureOfGaussiansDpEvent, RepeatAndSelectDpEvent
from hypothesis import assume, given
from hypothesis import strategies as st

from rayprivacy.accounting.accountant import dominates, epsilon, plan_epsilon, plan_lines, read_plan
from rayprivacy.accounting.events import MAX_DEPTH, MAX_PARTS, MetricLocalDpEvent, from_json, to_json, validate
from rayprivacy.core.errors import ConfigError, EventError

GAUSS = dpa.GaussianDpEvent
sigmas = st.floats(1e-3, 1e6)


def _mixture(sigma, weights):
    total = math.fsum(weights)
    sizes = tuple(float(size + 1) for size in range(len(weights)))
    return MixtureOfGaussiansDpEvent(sigma, sizes, tuple(w / total for w in weights))


basic = st.one_of(
    st.builds(_mixture, sigmas, st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=5)),
    st.builds(MetricLocalDpEvent, st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(1, 2**53)),
    sigmas.map(GAUSS),
    sigmas.map(dpa.LaplaceDpEvent),
    st.builds(lambda q, s: dpa.PoissonSampledDpEvent(q, GAUSS(s)), st.floats(1e-9, 1.0), sigmas),
    st.just(dpa.NonPrivateDpEvent()),
)
events = st.recursive(
    basic,
    lambda inner: st.one_of(
        st.builds(dpa.SelfComposedDpEvent, inner, st.integers(1, 10**9)),
        st.builds(dpa.ComposedDpEvent, st.lists(inner, min_size=1, max_size=3)),
        st.builds(RepeatAndSelectDpEvent, inner, st.floats(1.5, 100), st.one_of(st.floats(0, 10), st.just(math.inf))),
    ),
    max_leaves=4,
)


@given(events)
def test_round_trip_through_json_text(event):
    assume(_depth(event) <= MAX_DEPTH)
    assert from_json(json.loads(json.dumps(to_json(event), allow_nan=False))) == event


def _depth(event):
    inner = [*getattr(event, "events", []), *([event.event] if hasattr(event, "event") else [])]
    return 1 + max(map(_depth, inner), default=0)


NAN, INF, HUGE = math.nan, math.inf, 10**6000  # too long an integer even to be printed


@pytest.mark.parametrize(
    "event",
    [
        *(GAUSS(bad) for bad in (NAN, INF, -INF, 0, 0.0, -1.0, True, "1", None, 1e-200, 1e200, 10**400)),
        dpa.LaplaceDpEvent(NAN),
        *(dpa.PoissonSampledDpEvent(q, GAUSS(1.0)) for q in (0, -0.1, 1.0000001, NAN, INF, True)),
        dpa.PoissonSampledDpEvent(0.1, dpa.LaplaceDpEvent(1.0)),
        *(dpa.SelfComposedDpEvent(GAUSS(1.0), n) for n in (0, -1, 1.0, True, NAN, 2**54, HUGE, "2")),
        *(dpa.ComposedDpEvent(events) for events in ([], [GAUSS(NAN)])),
        RepeatAndSelectDpEvent(GAUSS(1.0), NAN, 1.0),
        *(MixtureOfGaussiansDpEvent(bad, [0.0, 1.0], [0.5, 0.5]) for bad in (NAN, 0.0, True, "1", HUGE)),
        *(MixtureOfGaussiansDpEvent(1.0, [0.0, bad], [0.5, 0.5]) for bad in (NAN, INF, -1.0, 0.0, True, "1", HUGE)),
        *(MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [0.5, bad]) for bad in (NAN, INF, -0.5, 0.4, True, "1", HUGE)),
        MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [1.0, 0.0]),
        MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [1.0]),
        *(MixtureOfGaussiansDpEvent(1.0, empty, empty) for empty in ([], None)),
        MixtureOfGaussiansDpEvent(1.0, [1.0] * (MAX_PARTS + 1), [1 / (MAX_PARTS + 1)] * (MAX_PARTS + 1)),
        *(MetricLocalDpEvent(bad, 1.0, 1) for bad in (NAN, INF, 0.0, -1.0, True, "1", HUGE)),
        *(MetricLocalDpEvent(1.0, bad, 1) for bad in (NAN, 0.0, HUGE)),
        *(MetricLocalDpEvent(1.0, 1.0, bad) for bad in (0, 1.0, True, NAN, HUGE)),
        *(RepeatAndSelectDpEvent(GAUSS(1.0), 10.0, bad) for bad in (NAN, -1.0, HUGE, True, "poisson ")),
        *(GAUSS(HUGE), dpa.NoOpDpEvent(), dpa.UnsupportedDpEvent(), dpa.ZCDpEvent(1.0), "gaussian"),
    ],
)
def test_no_mechanism_has_such_an_event(event):
    with pytest.raises(EventError):
        validate(event)


@pytest.mark.parametrize(
    "obj",
    [
        *(None, [], {}, {"kind": HUGE}),
        {"kind": "gauss", "noise_multiplier": 1.0},
        {"kind": ["gaussian"], "noise_multiplier": 1.0},
        {"kind": "gaussian"},
        {"kind": "gaussian", "noise_multiplier": 1.0, "module_name": "os"},
        {"kind": "gaussian", "noise_multiplier": [1.0]},
        {"kind": "composed", "events": {"kind": "non-private"}},
        {"kind": "repeat-and-select", "mean": 2.0, "shape": [1], "event": {"kind": "non-private"}},
        {"module_name": "os", "class_name": "system"},
        {"kind": "gaussian", HUGE: 1},
        {"kind": "mixture-of-gaussians", "standard_deviation": 1.0, "sensitivities": 1.0, "sampling_probs": [1.0]},
    ],
)
def test_stored_junk_is_refused(obj):
    with pytest.raises(EventError):
        from_json(obj)


KEYS = st.sampled_from(["kind", "noise_multiplier", "count", "event", "events", "x"])
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=5), st.just("gaussian")),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=10,
)


@given(json_values)
def test_arbitrary_json_is_an_event_or_an_event_error(obj):
    with contextlib.suppress(EventError):
        assert to_json(from_json(obj))["kind"] in ("gaussian", "laplace", "self-composed", "composed", "non-private")


def test_nesting_is_bounded_in_both_directions():
    event: DpEvent = GAUSS(1.0)
    obj: dict[str, object] = {"kind": "gaussian", "noise_multiplier": 1.0}
    for _ in range(5000):
        event, obj = dpa.SelfComposedDpEvent(event, 2), {"kind": "self-composed", "count": 2, "event": obj}
    for refused in (lambda: to_json(event), lambda: from_json(obj)):
        with pytest.raises(EventError, match=f"{MAX_DEPTH} levels"):
            refused()


def _sampled(q, sigma):
    return dpa.PoissonSampledDpEvent(q, GAUSS(sigma))


def test_a_plan_is_yaml_or_json(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(
        "- {kind: self-composed, count: 10, event: {kind: gaussian, noise_multiplier: 40.0}}\n"
        "- kind: poisson-sampled-gaussian\n  sampling_probability: 0.01\n  noise_multiplier: 1\n"
    )
    assert read_plan(path) == (dpa.SelfComposedDpEvent(GAUSS(40.0), 10), _sampled(0.01, 1.0))
    path.write_text('[{"kind": "laplace", "noise_multiplier": 2.0}]')
    assert read_plan(str(path)) == (dpa.LaplaceDpEvent(2.0),)
    for none in (tmp_path, tmp_path / "none.yaml"):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_plan(none)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"[]", b"kind: gaussian", b"- gaussian", b"\x00", b"\xff\xfe\x00[", b"\xff not utf-8", b"[" * 100_000),
        *(b"- !!python/object:os.system {}", b"- 2026-99-99", b"- {[1]: 2}", b"- &a [*a]"),
        b"- {kind: gaussian, noise_multiplier: .nan}",
        b"- {kind: gaussian, noise_multiplier: 2.0, extra: 1}",
        b"- {kind: gaussian, noise_multiplier: " + b"9" * 5000 + b"}",
    ],
)
def test_a_malformed_plan_is_one_sentence(tmp_path, data):
    path = tmp_path / "plan.yaml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="plan is") as raised:
        read_plan(path)
    assert "\n" not in str(raised.value)


def test_lines_are_merged_in_one_order():
    events = [dpa.ComposedDpEvent([_sampled(0.1, 2.0), GAUSS(3.0)]), dpa.SelfComposedDpEvent(GAUSS(3), 4), GAUSS(5.0)]
    lines = plan_lines(events)
    assert dict(lines) == {GAUSS(3.0): 5, GAUSS(5.0): 1, _sampled(0.1, 2.0): 1}
    assert lines == plan_lines(list(reversed(events)))
    assert plan_lines([]) == ()


MIXTURE = MixtureOfGaussiansDpEvent(1.0, (0.0, 1.0), (0.9, 0.1))
WINNER = RepeatAndSelectDpEvent(GAUSS(1.0), 10.0, 1.0)
LINES = [
    (GAUSS(2.0), GAUSS(2.0), True),
    (GAUSS(2.0), GAUSS(1.999), False),
    (GAUSS(2.0), _sampled(0.9, 2.0), True),
    (GAUSS(2.0), _sampled(0.001, 1.9), False),
    (_sampled(0.1, 2.0), _sampled(0.1, 2.5), True),
    (_sampled(0.1, 2.0), _sampled(0.11, 2.5), False),
    (_sampled(0.1, 2.0), _sampled(0.05, 1.5), False),
    (_sampled(0.1, 2.0), GAUSS(100.0), False),
    (_sampled(1.0, 2.0), GAUSS(2.0), True),
    (dpa.LaplaceDpEvent(1.0), dpa.LaplaceDpEvent(1.0), True),
    (dpa.LaplaceDpEvent(1.0), dpa.LaplaceDpEvent(0.9), False),
    (GAUSS(0.1), dpa.LaplaceDpEvent(100.0), False),
    (dpa.LaplaceDpEvent(0.1), GAUSS(100.0), False),
    (MIXTURE, MIXTURE, True),
    (MIXTURE, MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [0.9, 0.1]), True),
    (MIXTURE, MixtureOfGaussiansDpEvent(2.0, (0.0, 1.0), (0.9, 0.1)), False),
    (GAUSS(0.1), MIXTURE, False),
    (WINNER, WINNER, True),
    (WINNER, GAUSS(1.0), False),
    (WINNER, RepeatAndSelectDpEvent(GAUSS(2.0), 10.0, 1.0), False),
    (MetricLocalDpEvent(1.0, 1.0, 1), MetricLocalDpEvent(1.0, 1.0, 1), False),
    (dpa.NonPrivateDpEvent(), dpa.NonPrivateDpEvent(), True),
    (GAUSS(0.1), dpa.NonPrivateDpEvent(), False),
]


@pytest.mark.parametrize(("line", "leaf", "covered"), LINES)
def test_a_line_covers_what_costs_no_more(line, leaf, covered):
    assert dominates(line, leaf) is covered
    for pair in ((line, GAUSS(float("nan"))), (GAUSS(float("nan")), leaf)):  # no event at all
        with pytest.raises(EventError):
            dominates(*pair)


@pytest.mark.parametrize(("line", "leaf"), [(line, leaf) for line, leaf, covered in LINES[:12] if covered])
def test_what_a_line_covers_costs_no_more_alone_and_composed(line, leaf):
    for times, delta in ((1, 1e-6), (30, 1e-3)):
        assert plan_epsilon([(leaf, times)], delta) <= plan_epsilon([(line, times)], delta) * (1 + 1e-4)


def test_the_epsilon_of_a_plan_is_that_of_its_events():
    plan = [dpa.SelfComposedDpEvent(_sampled(0.02, 0.9), 500), dpa.SelfComposedDpEvent(_sampled(0.01, 0.9), 1000)]
    assert plan_epsilon(plan_lines(plan), 1e-5) == pytest.approx(4.15, abs=0.01)
    assert plan_epsilon(plan_lines(plan), 1e-5) == pytest.approx(epsilon(plan, 1e-5, "pld"), rel=1e-9)
    assert plan_epsilon((), 1e-5) == 0
    with pytest.raises(EventError, match="use 'rdp'"):
        plan_epsilon([(WINNER, 1)], 1e-5)
