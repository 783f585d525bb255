"""Accounting events as JSON: a whitelist, so that a stored row can only ever mean what an accountant understands.

An *event* says what a mechanism did (Gaussian noise of multiplier sigma, sampled with probability q, repeated n times),
not what it costs: costs depend on delta and on the accountant, events do not, so the ledger stores events. Three faults
make a stored event cost too little, and each is refused here: a NaN multiplier (accountants answer epsilon = 0), an
unknown class (its meaning may change) and code chosen by stored data (`DpEvent.from_named_tuple` imports whatever
module a row names, and is therefore never used). A JSON number may be anything: NaN, an infinity, a truth value (an
`int` to Python), or an integer of ten thousand digits that no float holds and that cannot even be printed. None may
reach an accountant, and none may end in another error than EventError.

>>> event = SelfComposedDpEvent(GaussianDpEvent(2.0), 100)
>>> to_json(event)
{'kind': 'self-composed', 'count': 100, 'event': {'kind': 'gaussian', 'noise_multiplier': 2.0}}
>>> from_json(to_json(event)) == event
True

Costs are added as exact fractions (`total`, `round_up`): an account that admits charges until its cap is reached must
answer the same whatever the order of the charges and whatever code adds them up again, and a sum of floats does not.

**A threshold takes a delta of its own.** A `thresholded-gaussian` event (`release.thresholded`) is Gaussian noise on
the sums of keys that the corpus has, and a threshold under which no key is released: a key that one unit alone has
comes out with a probability of at most `delta`. Its pair of neighbours costs at most what this pair of distributions
does: a Gaussian, and a Gaussian that is replaced, with probability `delta`, by a symbol that gives the unit away. So
deltas add up (that no symbol comes out in any of several, adaptively chosen releases has a probability of at least one
less their sum), and what is left is the composition of the Gaussians. `without_thresholds` takes the two apart; no
accountant takes such an event as it is, so that a delta cannot be forgotten. The symbol costs delta, and not
exp(epsilon) times delta, in both directions. With G' the Gaussian of the corpus that has the unit, p the probability of
the symbol and M' = (1 - p) G' + p (symbol) what is released there, G what is released without the unit, and G and G'
(epsilon, d)-close:

    M'(S) <= G'(S) + p <= exp(epsilon) G(S) + d + p
    G(S) <= min(1, exp(epsilon) G'(S) + d) <= exp(epsilon) (1 - p) G'(S) + p + d <= exp(epsilon) M'(S) + p + d

The middle of the second line: with y = exp(epsilon) G'(S), min(1, y + d) <= (1 - p) y + p + d, for y <= 1 as p y <= p,
and for y > 1 as the right is at least 1 - p + p.

**Metric local privacy** of single tokens (SanText, Yue et al. 2021) is an event of its own, composed with no other.
SanText replaces each token x by a token drawn from a public vocabulary, so that for any two tokens x, x' the chances of
each outcome differ by a factor of at most exp(epsilon * d(x, x')), d a distance of public embeddings. It hides *which*
token was there, better from near tokens than from far ones. Two things follow:

- no distance is above the diameter D of the vocabulary, so a document of L tokens is epsilon*D*L locally private when
  any of its tokens may change: this is the figure to print, and it is usually a large one;
- it is a guarantee of another kind than that of a central ledger (each document against every other of the same
  length, no unit of a user, no delta). Neither figure may be added to the other, so no central accountant takes it.

SanText+ protects the words of a public list of sensitive ones. A word that is not on it is released as it is with
probability 1 - p, and is replaced by a sensitive one else; hence a sensitive outcome is up to 1/p times as likely where
the input was sensitive, which adds ln(1/p) to the exponent of every token (Yue et al., theorem 2, eps0).

>>> document_epsilon(MetricLocalDpEvent(epsilon=2.0, diameter=1.5, tokens=100))
300.0
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import attrs
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

from rayprivacy.core.errors import EventError


def total(terms: Sequence[Fraction]) -> Fraction:
    """The exact sum, added pairwise so that the long denominators meet last."""
    if len(terms) <= 1:
        return terms[0] if terms else Fraction(0)
    middle = len(terms) // 2
    return total(terms[:middle]) + total(terms[middle:])


def round_up(value: Fraction) -> float:
    """The least float that is not below a fraction; infinite above the largest float."""
    try:
        near = float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    return near if near >= value else math.nextafter(near, math.inf)


EventJson = dict[str, Any]  # an event as the ledger stores it
MAX_COUNT = 2**53
MAX_PARTS = 1000
SIGMA_RANGE = (1e-100, 1e100)  # outside, 1 / sigma^2 would overflow or vanish, and a charge would cost nothing
_POISSON = "poisson"  # JSON has no infinity; repeat-and-select writes its Poisson case (shape = inf) as this word
_SUM_TOLERANCE = 1e-9
_DIGEST = re.compile(r"[0-9a-f]{64}")


def show(value: Any) -> str:
    """A value for an error message, short whatever it is."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, int | float | str | None):
        return repr(value if not isinstance(value, str) else value[:80])
    return f"a {type(value).__name__}"


def _number(obj: Mapping[str, Any], key: str, above: float, most: float) -> float:
    """A finite number with above < number <= most, as an accountant takes it; or an error that names the field."""
    value = obj[key]
    if not _is_number(value) or not above < value <= most:
        raise EventError(f"event.{key} is {show(value)}: give a finite number above {above:g} and at most {most:g}.")
    return float(value)


def _sigma(obj: Mapping[str, Any], key: str = "noise_multiplier") -> float:
    return _number(obj, key, *SIGMA_RANGE)


def _whole(obj: Mapping[str, Any], key: str) -> int:
    value = obj[key]
    if type(value) is not int or not 1 <= value <= MAX_COUNT:
        raise EventError(f"event.{key} is {show(value)}: give a whole number between 1 and 2**53.")
    return value


def _digest(obj: Mapping[str, Any], key: str) -> str:
    value = obj[key]
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise EventError(f"event.{key} is {show(value)}: give 64 hex digits.")
    return value


def _shape(obj: Mapping[str, Any]) -> float:
    value = obj["shape"]
    if isinstance(value, str) and value == _POISSON:
        return math.inf
    if not _is_number(value) or not 0 <= value <= 1e6:
        raise EventError(f"event.shape is {show(value)}: give a number from 0 to 1e6, or {_POISSON!r}.")
    return float(value)


def _parts(obj: Mapping[str, Any], key: str) -> list[Any]:
    value = obj[key]
    if not isinstance(value, list) or not value:
        raise EventError(f"event.{key} is not a list of at least one entry: give one.")
    return value


def _checked_mixture(obj: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Sensitivities and sampling probabilities of a mixture of Gaussians, one for one.

    A mixture in which nothing can have a positive sensitivity is refused: it would cost nothing.
    """
    sensitivities, probabilities = _parts(obj, "sensitivities"), _parts(obj, "sampling_probs")
    if len(sensitivities) != len(probabilities) or len(sensitivities) > MAX_PARTS:
        sizes = f"{len(sensitivities)} sensitivities and {len(probabilities)} sampling_probs"
        raise EventError(f"the mixture has {sizes}: give as many of each, at most {MAX_PARTS}.")
    for key, values, most in (("sensitivities", sensitivities, SIGMA_RANGE[1]), ("sampling_probs", probabilities, 1)):
        for value in values:
            if not _is_number(value) or not 0 <= value <= most:
                raise EventError(f"event.{key} holds {show(value)}: give finite numbers from 0 to {most:g}.")
    sizes_, probs = tuple(map(float, sensitivities)), tuple(map(float, probabilities))
    if abs(math.fsum(probs) - 1) > _SUM_TOLERANCE:
        raise EventError(f"event.sampling_probs sum to {math.fsum(probs):g}: they must sum to 1.")
    if not any(size > 0 and p > 0 for size, p in zip(sizes_, probs, strict=True)):
        raise EventError("event.sensitivities are all 0 where event.sampling_probs are not: give one above 0.")
    return sizes_, probs


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@attrs.frozen
class MetricLocalDpEvent(DpEvent):  # type: ignore[misc]
    """`tokens` tokens, each sanitised with metric local privacy `epsilon` per unit of distance.

    `diameter` is the largest distance between two tokens of the public vocabulary, or, where the bound of a token was
    computed exactly, that bound divided by epsilon. `tokens` bounds those of a document, or of all documents of a user
    together. `keep_cost` is ln(1/p) of SanText+, for each token, and `sensitive` the digest of the public list of words
    that are protected: 0 and empty where all are.
    """

    epsilon: float
    diameter: float
    tokens: int
    keep_cost: float = 0.0
    sensitive: str = ""


@attrs.frozen
class ThresholdedGaussianDpEvent(DpEvent):  # type: ignore[misc]
    """Gaussian noise on the sums of an unknown set of keys, of which none is released up to a threshold.

    `noise_multiplier` is noise std / L2 sensitivity, and `delta` bounds the probability with which any key that one
    unit alone has is released.
    """

    noise_multiplier: float
    delta: float


def without_thresholds(events: Sequence[DpEvent]) -> tuple[list[DpEvent], Fraction]:
    """The events with plain Gaussians in place of thresholded ones, and the deltas of these together, exact.

    >>> without_thresholds([SelfComposedDpEvent(ThresholdedGaussianDpEvent(2.0, 0.25), 2)])
    ([SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=2)], Fraction(1, 2))
    """
    found = [(leaf, times) for event in events for leaf, times in checked_leaves(event)]
    deltas = [Fraction(leaf.delta) * times for leaf, times in found if type(leaf) is ThresholdedGaussianDpEvent]
    return [_plain(event) for event in events], total(deltas)


def _plain(event: DpEvent) -> DpEvent:
    if type(event) is ThresholdedGaussianDpEvent:
        return GaussianDpEvent(event.noise_multiplier)
    if type(event) is SelfComposedDpEvent:
        return SelfComposedDpEvent(_plain(event.event), event.count)
    if type(event) is ComposedDpEvent:
        return ComposedDpEvent([_plain(part) for part in event.events])
    return event


def delta_left(delta: float, taken: Fraction) -> float:
    """What thresholds leave of a delta, rounded down; EventError where they leave nothing."""
    left = Fraction(delta) - taken
    if left <= 0:
        raise EventError(
            f"the thresholds take delta {float(taken):.6g}, and there is {delta:.6g} of it in all: give them less."
        )
    return -round_up(-left)


def document_epsilon(event: MetricLocalDpEvent) -> float:
    """The local epsilon of a whole document, rounded up; infinite beyond floats."""
    if not all(map(math.isfinite, (event.epsilon, event.diameter, event.keep_cost))):
        return math.inf
    return round_up(exact_epsilon(event))


def exact_epsilon(event: MetricLocalDpEvent) -> Fraction:
    """tokens * (epsilon * diameter + keep_cost), without rounding."""
    return (Fraction(event.epsilon) * Fraction(event.diameter) + Fraction(event.keep_cost)) * event.tokens


def token_epsilon(wanted: float, diameter: float, tokens: int) -> float:
    """The epsilon per token and unit of distance with which a document has the wanted epsilon, rounded down."""
    found = wanted / tokens / diameter
    while Fraction(found) * Fraction(diameter) * tokens > Fraction(wanted):
        found = math.nextafter(found, 0)
    return found


MAX_DEPTH = 8

_KEYS = {
    "gaussian": ("noise_multiplier",),
    "thresholded-gaussian": ("noise_multiplier", "delta"),
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


def to_json(event: DpEvent) -> EventJson:
    """Encode an event, after every check that `from_json` makes; EventError for what is not one of the kinds."""
    return _encode(from_json(_encode(event, 0)), 0)


def validate(event: DpEvent) -> None:
    """Refuse an event that the ledger must not store."""
    to_json(event)


def from_json(obj: Any) -> DpEvent:
    """Decode an event; EventError for an unknown kind, missing or extra keys, values out of range, or deep nesting."""
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


def checked_leaves(event: DpEvent) -> Iterator[tuple[DpEvent, int]]:
    """The same of an event from outside, after every check."""
    return leaves(from_json(to_json(event)))


def protected_by(event: DpEvent) -> str:
    """The digest of the list of words that a metric-local event protects; empty where it protects all of them.

    Parts that protect all words, or all values of labels, protect those of the list among them. An event whose parts
    protect the words of two lists is refused: the sum of their epsilons is about neither.
    """
    lists = {leaf.sensitive for leaf, _ in leaves(event) if type(leaf) is MetricLocalDpEvent} - {""}
    if len(lists) > 1:
        raise EventError("the event protects the words of two lists: charge each list to an account of its own.")
    return next(iter(lists), "")


def _encode(event: DpEvent, depth: int) -> EventJson:
    _check_depth(depth)
    kind = type(event)  # exact types: a subclass could mean something else
    if kind is GaussianDpEvent:
        return {"kind": "gaussian", "noise_multiplier": event.noise_multiplier}
    if kind is ThresholdedGaussianDpEvent:
        return {"kind": "thresholded-gaussian", "noise_multiplier": event.noise_multiplier, "delta": event.delta}
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
        shape = _POISSON if event.shape == math.inf else event.shape
        inner = _encode(event.event, depth + 1)
        return {"kind": "repeat-and-select", "mean": event.mean, "shape": shape, "event": inner}
    if kind is MixtureOfGaussiansDpEvent:
        return _mixture(event)
    if kind is MetricLocalDpEvent:
        every = {"epsilon": event.epsilon, "diameter": event.diameter, "tokens": event.tokens}
        if not event.sensitive and event.keep_cost == 0:
            return {"kind": "metric-local", **every}
        return {"kind": "metric-local-sensitive", **every, "keep_cost": event.keep_cost, "sensitive": event.sensitive}
    if kind is NonPrivateDpEvent:
        return {"kind": "non-private"}
    raise EventError(f"the event is a {kind.__name__}: use one of {', '.join(_KEYS)}.")


def _mixture(event: DpEvent) -> EventJson:
    sizes, probs = event.sensitivities, event.sampling_probs
    if not isinstance(sizes, list | tuple) or not isinstance(probs, list | tuple):
        raise EventError("the mixture has sensitivities or sampling_probs that are no list: give lists of numbers.")
    return {
        "kind": "mixture-of-gaussians",
        "standard_deviation": event.standard_deviation,
        "sensitivities": list(sizes),
        "sampling_probs": list(probs),
    }


def _decode(obj: Any, depth: int) -> DpEvent:
    _check_depth(depth)
    kind = _check_keys(obj)
    if kind == "gaussian":
        return GaussianDpEvent(_sigma(obj))
    if kind == "thresholded-gaussian":
        return ThresholdedGaussianDpEvent(_sigma(obj), _number(obj, "delta", 0, 1))
    if kind == "laplace":
        return LaplaceDpEvent(_sigma(obj))
    if kind == "poisson-sampled-gaussian":
        return PoissonSampledDpEvent(_number(obj, "sampling_probability", 0, 1), GaussianDpEvent(_sigma(obj)))
    if kind == "self-composed":
        return SelfComposedDpEvent(_decode(obj["event"], depth + 1), _whole(obj, "count"))
    if kind == "composed":
        return ComposedDpEvent([_decode(part, depth + 1) for part in _parts(obj, "events")])
    if kind == "repeat-and-select":
        trial = _decode(obj["event"], depth + 1)
        if any(type(leaf) is ThresholdedGaussianDpEvent for leaf, _ in leaves(trial)):
            raise EventError("a trial has a threshold: the choice of the best trial takes no release with one.")
        return RepeatAndSelectDpEvent(trial, _number(obj, "mean", 1, 1e9), _shape(obj))
    if kind == "mixture-of-gaussians":
        return MixtureOfGaussiansDpEvent(_sigma(obj, "standard_deviation"), *_checked_mixture(obj))
    if kind.startswith("metric-local"):
        every = _number(obj, "epsilon", 0, 1e9), _number(obj, "diameter", 0, 1e9), _whole(obj, "tokens")
        if kind == "metric-local":
            return MetricLocalDpEvent(*every)
        return MetricLocalDpEvent(*every, _number(obj, "keep_cost", 0, 1e9), _digest(obj, "sensitive"))
    return NonPrivateDpEvent()


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise EventError(f"the event is nested more than {MAX_DEPTH} levels deep: flatten the composition.")


def _check_keys(obj: Any) -> str:
    if not isinstance(obj, dict):
        raise EventError(f"the event is a {type(obj).__name__}: give a JSON object with a 'kind'.")
    kind = obj.get("kind")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise EventError(f"event.kind is {show(kind)}: use one of {', '.join(_KEYS)}.")
    expected = {"kind", *_KEYS[kind]}
    if obj.keys() != expected:
        found = ", ".join(sorted(map(show, obj)))
        raise EventError(f"the {kind} event has the keys {found}: it takes exactly {sorted(expected)}.")
    return kind
