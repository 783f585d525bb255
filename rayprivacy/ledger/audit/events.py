"""Events as the auditor reads them: a tree of JSON is flattened to basic mechanisms, each with its number of runs.

A basic mechanism is a *leaf*. Two leaves are equal when their canonical JSON is; numbers are floats there, so that 2
and 2.0 are one mechanism. What is not listed below is refused: unknown kinds, missing or extra keys, NaN, infinities,
values out of range, and nesting deeper than eight.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)

from rayprivacy.ledger.audit import strict

MAX_DEPTH = 8
MAX_PARTS = 1000
_KEYS = {
    "gaussian": {"noise_multiplier"},
    "poisson-sampled-gaussian": {"sampling_probability", "noise_multiplier"},
    "laplace": {"noise_multiplier"},
    "self-composed": {"count", "event"},
    "composed": {"events"},
    "repeat-and-select": {"mean", "shape", "event"},
    "mixture-of-gaussians": {"standard_deviation", "sensitivities", "sampling_probs"},
    "metric-local": {"epsilon", "diameter", "tokens"},
    "metric-local-sensitive": {"epsilon", "diameter", "tokens", "keep_cost", "sensitive"},
    "non-private": set(),
}

Leaves = tuple[tuple["Leaf", int], ...]


@dataclass(frozen=True)
class Leaf:
    """One basic mechanism.

    Attributes:
        text: its canonical JSON, by which leaves are compared.
        kind: as in the JSON.
        facts: its numbers by name.
        inside: the mechanisms of one trial, for repeat-and-select.
    """

    text: str
    kind: str = field(compare=False)
    facts: dict[str, Any] = field(compare=False)
    inside: Leaves = field(compare=False, default=())

    @property
    def sigma(self) -> float:
        """Noise per sensitivity, of Gaussian and Laplace noise."""
        return float(self.facts["noise_multiplier"])

    @property
    def q(self) -> float:
        """Sampling probability; 1 when nothing is sampled."""
        return float(self.facts.get("sampling_probability", 1.0))

    def to_library(self) -> DpEvent:
        """The event that dp_accounting composes."""
        if self.kind == "laplace":
            return LaplaceDpEvent(self.sigma)
        if self.kind == "mixture-of-gaussians":
            pairs = zip(self.facts["sensitivities"], self.facts["sampling_probs"], strict=True)
            kept = [(size, p) for size, p in pairs if p > 0]
            total = math.fsum(p for _, p in kept)
            deviation = self.facts["standard_deviation"]
            return MixtureOfGaussiansDpEvent(deviation, [size for size, _ in kept], [p / total for _, p in kept])
        noise = GaussianDpEvent(self.sigma)
        return noise if self.kind == "gaussian" else PoissonSampledDpEvent(self.q, noise)


def read_leaves(text: str, where: str) -> Leaves:
    """The leaves of a stored event, equal ones added up."""
    return flatten(strict.parse(text, where, "events"), where)


def flatten(event: Any, where: str) -> Leaves:
    """The leaves of an event given as JSON values."""
    return merged(_walk(event, 1, 0, where))


def merged(leaves: Iterable[tuple[Leaf, int]]) -> Leaves:
    """The same leaves, equal ones added up."""
    found: dict[Leaf, int] = {}
    for leaf, times in leaves:
        found[leaf] = found.get(leaf, 0) + times
    return tuple(found.items())


def compose(leaves: Leaves) -> DpEvent:
    """All leaves as one event of dp_accounting."""
    return ComposedDpEvent([SelfComposedDpEvent(leaf.to_library(), times) for leaf, times in leaves])


def _walk(event: Any, times: int, depth: int, where: str) -> Iterator[tuple[Leaf, int]]:
    kind = event.get("kind") if isinstance(event, dict) else None
    if depth >= MAX_DEPTH or not isinstance(kind, str) or kind not in _KEYS:
        strict.fail(where, "holds an event of unknown kind, or one nested too deep")
    strict.mapping(event, _KEYS[kind] | {"kind"}, where, "events")
    if kind == "self-composed":
        count = strict.whole(event["count"], 1, strict.MAX_COUNT, where, "events")
        yield from _walk(event["event"], times * count, depth + 1, where)
    elif kind == "composed":
        parts = strict.items(event["events"], where, "events")
        if not parts:
            strict.fail(where, "holds an empty composition")
        for part in parts:
            yield from _walk(part, times, depth + 1, where)
    else:
        yield _leaf(event, kind, depth, where), times


def _leaf(event: dict[str, Any], kind: str, depth: int, where: str) -> Leaf:
    inside: Leaves = ()
    facts: dict[str, Any] = {}
    for key in sorted(_KEYS[kind]):
        if key == "event":
            inside = merged(_walk(event["event"], 1, depth + 1, where))
        else:
            facts[key] = _fact(event[key], key, where)
    if kind == "mixture-of-gaussians":
        _check_mixture(facts["sensitivities"], facts["sampling_probs"], where)
    trial = [[leaf.text, times] for leaf, times in inside]
    return Leaf(strict.canonical({"kind": kind, "inside": trial, **facts}), kind, facts, inside)


def _fact(value: Any, key: str, where: str) -> Any:
    if key in ("sensitivities", "sampling_probs"):
        most, least = (1e100 if key == "sensitivities" else 1.0), math.nextafter(0.0, -1.0)
        return [strict.number(part, least, most, where, "events") for part in strict.items(value, where, "events")]
    if key == "tokens":
        return strict.whole(value, 1, strict.MAX_COUNT, where, "events")
    if key == "shape":
        poisson = isinstance(value, str) and value == "poisson"
        return value if poisson else strict.number(value, math.nextafter(0.0, -1.0), 1e6, where, "events")
    if key == "sensitive":
        return strict.digest(value, where, "events")
    above, most = _RANGES[key]
    return strict.number(value, above, most, where, "events")


_RANGES = {
    "noise_multiplier": (1e-100, 1e100),
    "standard_deviation": (1e-100, 1e100),
    "sampling_probability": (0.0, 1.0),
    "mean": (1.0, 1e9),
    "epsilon": (0.0, 1e9),
    "diameter": (0.0, 1e9),
    "keep_cost": (0.0, 1e9),
}


def _check_mixture(sizes: list[float], probabilities: list[float], where: str) -> None:
    matched = len(sizes) == len(probabilities) <= MAX_PARTS and abs(math.fsum(probabilities) - 1) <= 1e-9
    if not matched or not any(size > 0 and p > 0 for size, p in zip(sizes, probabilities, strict=True)):
        strict.fail(where, "holds a mixture that is none")
