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
    MixtureOfGaussiansDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    RepeatAndSelectDpEvent,
    SelfComposedDpEvent,
)

from rayprivacy.accounting import fields
from rayprivacy.accounting.metric import MetricLocalDpEvent
from rayprivacy.core.errors import EventError

MAX_DEPTH = 8

_KEYS = {
    "gaussian": ("noise_multiplier",),
    "poisson-sampled-gaussian": ("sampling_probability", "noise_multiplier"),
    "laplace": ("noise_multiplier",),
    "self-composed": ("count", "event"),
    "composed": ("events",),
    "repeat-and-select": ("mean", "shape", "event"),
    "mixture-of-gaussians": ("standard_deviation", "sensitivities", "sampling_probs"),
    "metric-local": ("epsilon", "diameter", "tokens"),
    "metric-local-sensitive": ("epsilon", "diameter", "tokens", "keep_cost", "sensitive"),
    "non-private": (),
}


def to_json(event: DpEvent) -> dict[str, Any]:
    """Encode an event, after every check that `from_json` makes.

    Raises:
        EventError: the event is not one of the ten kinds, or holds a value that no mechanism can have.
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


def protected_by(event: DpEvent) -> str:
    """The digest of the list of words that a metric-local event protects; empty where it protects all of them.

    Parts that protect all words, or all values of labels, protect those of the list among them.

    Raises:
        EventError: its parts protect the words of two lists, so that the sum of their epsilons is about neither.
    """
    lists = {leaf.sensitive for leaf, _ in leaves(event) if type(leaf) is MetricLocalDpEvent} - {""}
    if len(lists) > 1:
        raise EventError("the event protects the words of two lists: charge each list to an account of its own.")
    return next(iter(lists), "")


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
        shape = fields.POISSON if event.shape == math.inf else event.shape
        inner = _encode(event.event, depth + 1)
        return {"kind": "repeat-and-select", "mean": event.mean, "shape": shape, "event": inner}
    if kind is MixtureOfGaussiansDpEvent:
        return {"kind": "mixture-of-gaussians", **_mixture(event)}
    if kind is MetricLocalDpEvent:
        return _metric(event)
    if kind is NonPrivateDpEvent:
        return {"kind": "non-private"}
    raise EventError(f"the event is a {kind.__name__}: use one of {', '.join(_KEYS)}.")


def _metric(event: MetricLocalDpEvent) -> dict[str, Any]:
    every = {"epsilon": event.epsilon, "diameter": event.diameter, "tokens": event.tokens}
    if not event.sensitive and event.keep_cost == 0:
        return {"kind": "metric-local", **every}
    return {"kind": "metric-local-sensitive", **every, "keep_cost": event.keep_cost, "sensitive": event.sensitive}


def _mixture(event: DpEvent) -> dict[str, Any]:
    sizes, probs = event.sensitivities, event.sampling_probs
    if not isinstance(sizes, list | tuple) or not isinstance(probs, list | tuple):
        raise EventError("the mixture has sensitivities or sampling_probs that are no list: give lists of numbers.")
    deviation = event.standard_deviation
    return {"standard_deviation": deviation, "sensitivities": list(sizes), "sampling_probs": list(probs)}


def _decode(obj: Any, depth: int) -> DpEvent:
    _check_depth(depth)
    kind = _check_keys(obj)
    if kind == "gaussian":
        return GaussianDpEvent(fields.sigma(obj))
    if kind == "laplace":
        return LaplaceDpEvent(fields.sigma(obj))
    if kind == "poisson-sampled-gaussian":
        q = fields.number(obj, "sampling_probability", 0, 1)
        return PoissonSampledDpEvent(q, GaussianDpEvent(fields.sigma(obj)))
    if kind == "self-composed":
        return SelfComposedDpEvent(_decode(obj["event"], depth + 1), fields.whole(obj, "count"))
    if kind == "composed":
        return ComposedDpEvent([_decode(part, depth + 1) for part in fields.parts(obj, "events")])
    if kind == "repeat-and-select":
        inner = _decode(obj["event"], depth + 1)
        mean = fields.number(obj, "mean", 1, 1e9)
        return RepeatAndSelectDpEvent(inner, mean, fields.shape(obj))
    if kind == "mixture-of-gaussians":
        return MixtureOfGaussiansDpEvent(fields.sigma(obj, "standard_deviation"), *fields.mixture(obj))
    if kind.startswith("metric-local"):
        epsilon = fields.number(obj, "epsilon", 0, 1e9)
        diameter = fields.number(obj, "diameter", 0, 1e9)
        tokens = fields.whole(obj, "tokens")
        if kind == "metric-local":
            return MetricLocalDpEvent(epsilon, diameter, tokens)
        keep_cost = fields.number(obj, "keep_cost", 0, 1e9)
        return MetricLocalDpEvent(epsilon, diameter, tokens, keep_cost, fields.digest(obj, "sensitive"))
    return NonPrivateDpEvent()


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise EventError(f"the event is nested more than {MAX_DEPTH} levels deep: flatten the composition.")


def _check_keys(obj: Any) -> str:
    if not isinstance(obj, dict):
        raise EventError(f"the event is a {type(obj).__name__}: give a JSON object with a 'kind'.")
    kind = obj.get("kind")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise EventError(f"event.kind is {fields.show(kind)}: use one of {', '.join(_KEYS)}.")
    expected = {"kind", *_KEYS[kind]}
    if obj.keys() != expected:
        found = ", ".join(sorted(map(fields.show, obj)))
        raise EventError(f"the {kind} event has the keys {found}: it takes exactly {sorted(expected)}.")
    return kind
