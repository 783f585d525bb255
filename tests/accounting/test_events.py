"""The event codec: what goes in comes out, and nothing else gets in."""

import contextlib
import json
import math

import dp_accounting as dpa
import pytest
from dp_accounting.dp_event import DpEvent, MixtureOfGaussiansDpEvent, RepeatAndSelectDpEvent
from hypothesis import assume, given
from hypothesis import strategies as st

from rayprivacy.accounting.events import MAX_DEPTH, MAX_PARTS, MetricLocalDpEvent, from_json, to_json, validate
from rayprivacy.core.errors import EventError

sigmas = st.floats(1e-3, 1e6)


def _mixture(sigma: float, weights: list[float]) -> MixtureOfGaussiansDpEvent:
    total = math.fsum(weights)
    sizes = tuple(float(size + 1) for size in range(len(weights)))
    return MixtureOfGaussiansDpEvent(sigma, sizes, tuple(w / total for w in weights))


basic = st.one_of(
    st.builds(_mixture, sigmas, st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=5)),
    st.builds(MetricLocalDpEvent, st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(1, 2**53)),
    sigmas.map(dpa.GaussianDpEvent),
    sigmas.map(dpa.LaplaceDpEvent),
    st.builds(lambda q, s: dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(s)), st.floats(1e-9, 1.0), sigmas),
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
def test_round_trip_through_json_text(event: DpEvent) -> None:
    assume(_depth(event) <= MAX_DEPTH)
    assert from_json(json.loads(json.dumps(to_json(event), allow_nan=False))) == event


def _depth(event: DpEvent) -> int:
    inner = [*getattr(event, "events", []), *([event.event] if hasattr(event, "event") else [])]
    return 1 + max(map(_depth, inner), default=0)


NAN, INF, HUGE = math.nan, math.inf, 10**6000  # too long an integer even to be printed


@pytest.mark.parametrize(
    "event",
    [
        *(dpa.GaussianDpEvent(bad) for bad in (NAN, INF, -INF, 0, 0.0, -1.0, True, "1", None, 1e-200, 1e200, 10**400)),
        dpa.LaplaceDpEvent(NAN),
        *(dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(1.0)) for q in (0, -0.1, 1.0000001, NAN, INF, True)),
        dpa.PoissonSampledDpEvent(0.1, dpa.LaplaceDpEvent(1.0)),
        *(dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(1.0), n) for n in (0, -1, 1.0, True, NAN, 2**54, HUGE, "2")),
        *(dpa.ComposedDpEvent(events) for events in ([], [dpa.GaussianDpEvent(NAN)])),
        RepeatAndSelectDpEvent(dpa.GaussianDpEvent(1.0), NAN, 1.0),
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
        *(RepeatAndSelectDpEvent(dpa.GaussianDpEvent(1.0), 10.0, bad) for bad in (NAN, -1.0, HUGE, True, "poisson ")),
        *(dpa.GaussianDpEvent(HUGE), dpa.NoOpDpEvent(), dpa.UnsupportedDpEvent(), dpa.ZCDpEvent(1.0), "gaussian"),
    ],
)
def test_no_mechanism_has_such_an_event(event: DpEvent) -> None:
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
def test_stored_junk_is_refused(obj: object) -> None:
    with pytest.raises(EventError):
        from_json(obj)


KEYS = st.sampled_from(["kind", "noise_multiplier", "count", "event", "events", "x"])
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=5), st.just("gaussian")),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=10,
)


@given(json_values)
def test_arbitrary_json_is_an_event_or_an_event_error(obj: object) -> None:
    with contextlib.suppress(EventError):
        assert to_json(from_json(obj))["kind"] in ("gaussian", "laplace", "self-composed", "composed", "non-private")


def test_nesting_is_bounded_in_both_directions() -> None:
    event: DpEvent = dpa.GaussianDpEvent(1.0)
    obj: dict[str, object] = {"kind": "gaussian", "noise_multiplier": 1.0}
    for _ in range(5000):
        event, obj = dpa.SelfComposedDpEvent(event, 2), {"kind": "self-composed", "count": 2, "event": obj}
    for refused in (lambda: to_json(event), lambda: from_json(obj)):
        with pytest.raises(EventError, match=f"{MAX_DEPTH} levels"):
            refused()
