"""Accounting events as JSON: a whitelist, so that a stored row can only ever mean what an accountant understands.

An *event* says what a mechanism did (Gaussian noise of multiplier sigma, sampled with probability q, repeated n times),
not what it costs: costs depend on delta and on the accountant, events do not, so the ledger stores events. Three faults
make a stored event cost too little, and each is refused here: a NaN multiplier (accountants answer epsilon = 0), an
unknown class (its meaning may change) and code chosen by stored data (`DpEvent.from_named_tuple` imports whatever
module a row names, and is therefore never used).

>>> event = SelfComposedDpEvent(GaussianDpEvent(2.0), 100)
>>> to_json(event)
{'kind': 'self-composed', 'count': 100, 'event': {'kind': 'gaussian', 'noise_multiplier': 2.0}}
>>> from_json(to_json(event)) == event
True
"""

import math
from collections.abc import Iterator
from typing import Any

from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    RepeatAndSelectDpEvent,
    SelfComposedDpEvent,
)

from rayprivacy.core.errors import EventError

MAX_DEPTH = 8
MAX_COUNT = 2**53
SIGMA_RANGE = (1e-100, 1e100)  # outside, 1 / sigma^2 would overflow or vanish, and a charge would cost nothing
POISSON = "poisson"  # JSON has no infinity; repeat-and-select writes its Poisson case (shape = inf) as this word

_KEYS = {
    "gaussian": ("noise_multiplier",),
    "poisson-sampled-gaussian": ("sampling_probability", "noise_multiplier"),
    "laplace": ("noise_multiplier",),
    "self-composed": ("count", "event"),
    "composed": ("events",),
    "repeat-and-select": ("mean", "shape", "event"),
    "non-private": (),
}


def to_json(event: DpEvent) -> dict[str, Any]:
    """Encode an event, after every check that `from_json` makes.

    Raises:
        EventError: the event is not one of the seven kinds, or holds a value that no mechanism can have.
    """
    return _encode(from_json(_encode(event, 0)), 0)


def validate(event: DpEvent) -> None:
    """Refuse an event that the ledger must not store.

    Raises:
        EventError: as `to_json`.
    """
    to_json(event)


def from_json(obj: Any) -> DpEvent:
    """Decode an event.

    Raises:
        EventError: unknown kind, missing or extra keys, NaN, inf, a value out of range, or too deep a nesting.
    """
    return _decode(obj, 0)


def leaves(event: DpEvent, times: int = 1) -> Iterator[tuple[DpEvent, int]]:
    """Walk a composition: each basic mechanism with the number of times it runs."""
    if type(event) is SelfComposedDpEvent:
        yield from leaves(event.event, times * event.count)
    elif type(event) is ComposedDpEvent:
        for part in event.events:
            yield from leaves(part, times)
    else:
        yield event, times


def _encode(event: DpEvent, depth: int) -> dict[str, Any]:
    _check_depth(depth)
    kind = type(event)  # exact types: a subclass could mean something else
    if kind is GaussianDpEvent:
        return {"kind": "gaussian", "noise_multiplier": event.noise_multiplier}
    if kind is LaplaceDpEvent:
        return {"kind": "laplace", "noise_multiplier": event.noise_multiplier}
    if kind is PoissonSampledDpEvent and type(event.event) is GaussianDpEvent:
        q, sigma = event.sampling_probability, event.event.noise_multiplier
        return {"kind": "poisson-sampled-gaussian", "sampling_probability": q, "noise_multiplier": sigma}
    if kind is SelfComposedDpEvent:
        return {"kind": "self-composed", "count": event.count, "event": _encode(event.event, depth + 1)}
    if kind is ComposedDpEvent:
        return {"kind": "composed", "events": [_encode(part, depth + 1) for part in event.events]}
    if kind is RepeatAndSelectDpEvent:
        shape = POISSON if event.shape == math.inf else event.shape
        inner = _encode(event.event, depth + 1)
        return {"kind": "repeat-and-select", "mean": event.mean, "shape": shape, "event": inner}
    if kind is NonPrivateDpEvent:
        return {"kind": "non-private"}
    raise EventError(f"the event is a {kind.__name__}: use one of {', '.join(_KEYS)}.")


def _decode(obj: Any, depth: int) -> DpEvent:
    _check_depth(depth)
    kind = _check_keys(obj)
    if kind == "gaussian":
        return GaussianDpEvent(_sigma(obj))
    if kind == "laplace":
        return LaplaceDpEvent(_sigma(obj))
    if kind == "poisson-sampled-gaussian":
        return PoissonSampledDpEvent(_number(obj, "sampling_probability", 0, 1), GaussianDpEvent(_sigma(obj)))
    if kind == "self-composed":
        return SelfComposedDpEvent(_decode(obj["event"], depth + 1), _count(obj))
    if kind == "composed":
        return ComposedDpEvent([_decode(part, depth + 1) for part in _parts(obj)])
    if kind == "repeat-and-select":
        return _repeat(obj, depth)
    return NonPrivateDpEvent()


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise EventError(f"the event is nested more than {MAX_DEPTH} levels deep: flatten the composition.")


def _check_keys(obj: Any) -> str:
    if not isinstance(obj, dict):
        raise EventError(f"the event is a {type(obj).__name__}: give a JSON object with a 'kind'.")
    kind = obj.get("kind")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise EventError(f"event.kind is {kind!r}: use one of {', '.join(_KEYS)}.")
    expected = {"kind", *_KEYS[kind]}
    if obj.keys() != expected:
        raise EventError(f"the {kind} event has the keys {sorted(map(str, obj))}: it takes exactly {sorted(expected)}.")
    return kind


def _number(obj: dict[str, Any], key: str, above: float, most: float) -> float:
    value = obj[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not above < value <= most:
        raise EventError(f"event.{key} is {value!r}: give a finite number above {above:g} and at most {most:g}.")
    return float(value)


def _sigma(obj: dict[str, Any]) -> float:
    return _number(obj, "noise_multiplier", *SIGMA_RANGE)


def _count(obj: dict[str, Any]) -> int:
    count = obj["count"]
    if type(count) is not int or not 1 <= count <= MAX_COUNT:
        raise EventError(f"event.count is {count!r}: give a whole number between 1 and 2**53.")
    return count


def _parts(obj: dict[str, Any]) -> list[Any]:
    parts = obj["events"]
    if not isinstance(parts, list) or not parts:
        raise EventError("event.events is not a list of at least one event: give one.")
    return parts


def _repeat(obj: dict[str, Any], depth: int) -> DpEvent:
    shape = math.inf if obj["shape"] == POISSON else _shape(obj["shape"])
    return RepeatAndSelectDpEvent(_decode(obj["event"], depth + 1), _number(obj, "mean", 1, 1e9), shape)


def _shape(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e6:
        raise EventError(f"event.shape is {value!r}: give a number from 0 to 1e6, or {POISSON!r}.")
    return float(value)
