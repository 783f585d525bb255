"""Events as the auditor reads them, and what each costs under each composition rule: an interval of honest costs.

A tree of JSON is flattened to basic mechanisms, *leaves*, each with its number of runs. Two leaves are equal when their
canonical JSON is; numbers are floats there, so that 2 and 2.0 are one mechanism. What is not listed below is refused:
unknown kinds, missing or extra keys, NaN, infinities, values out of range, and nesting deeper than eight.

Where a closed form is exact the interval is a point. Two allowances widen it upwards, never downwards: a store may
round up the cost of a sampled mechanism (a logarithm of a number near 1, so each library answer carries an absolute
error) and may bound the winner of a selection with fewer auxiliary orders, which is valid and costs more. For a
sampled Gaussian at a whole order a the auditor sums the binomial series in the form

    A - 1 = sum over i >= 2 of C(a, i) q^i (1-q)^(a-i) (exp(i(i-1) / (2 sigma^2)) - 1),   cost = log A / (a - 1)

whose terms are all positive, so nothing cancels however small q is. At other orders it asks dp_accounting, whose
series drops the signs of its terms: never below the truth, and a few per cent above it at low orders.

The winner of a secret number of trials (Papernot & Steinke 2022, Theorems 2 and 6) costs at order a, with r the cost of
one trial, m the mean number of trials, and for the truncated negative binomial of shape eta its stopping chance gamma:

    negative binomial:  r(a) + log(m)/(a-1) + (1 + eta) * min over b of [ (1 - 1/b) r(b) - log(gamma)/b ]
    Poisson:            r(a) + log(m)/(a-1) + m * delta(log(1 + 1/(a-1)))

Any auxiliary order b gives a bound. The least cost uses the grid below and the fact that a Renyi cost never falls as
the order rises; the greatest uses b = a alone. A store that takes any orders in between is honest.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp

from rayprivacy.ledger.audit import rows
from rayprivacy.ledger.audit.rows import Row

MAX_DEPTH = 8
MAX_PARTS = 1000
_KEYS = {
    "gaussian": {"noise_multiplier"},
    "thresholded-gaussian": {"noise_multiplier", "delta"},
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

_RANGES = {
    "noise_multiplier": (1e-100, 1e100),
    "standard_deviation": (1e-100, 1e100),
    "sampling_probability": (0.0, 1.0),
    "delta": (0.0, 1.0),
    "mean": (1.0, 1e9),
    "epsilon": (0.0, 1e9),
    "diameter": (0.0, 1e9),
    "keep_cost": (0.0, 1e9),
}
GRID = (
    *(1.02, 1.05),
    *(1 + tenth / 10.0 for tenth in range(1, 100)),
    *map(float, range(11, 65)),
    *(72.0, 80.0, 96.0, 128.0, 160.0, 192.0, 256.0, 384.0, 512.0, 768.0, 1024.0, 2048.0, 4096.0),
)
_TOLERANCE = 1e-6
_THRESHOLDED = "thresholded-gaussian"

Curve = Callable[[float], tuple[float, float] | None]
Price = tuple[float, float]  # no less than the first, no more than the second
Pricing = Callable[["Leaf"], Price | None]  # None: the rule does not take such a mechanism

_SAMPLED_SLACK = 2e-11  # what a store may add to one sampled cost, divided by order - 1; more at orders above 4096
Leaves = tuple[tuple["Leaf", int], ...]


@dataclass(frozen=True)
class Leaf:
    """One basic mechanism; leaves are compared by their canonical JSON. `inside` is one trial, of repeat-and-select."""

    text: str
    kind: str = field(compare=False)
    facts: Row = field(compare=False)
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
    return flatten(rows.parse(text, where, "events"), where)


def flatten(event: Any, where: str) -> Leaves:
    """The leaves of an event given as JSON values."""
    return merged(_walk(event, 1, 0, where))


def merged(leaves: Iterable[tuple[Leaf, int]]) -> Leaves:
    """The same leaves, equal ones added up."""
    found: dict[Leaf, int] = {}
    for leaf, times in leaves:
        found[leaf] = found.get(leaf, 0) + times
    return tuple(found.items())


def without_thresholds(leaves: Leaves) -> tuple[Leaves, Fraction]:
    """The leaves with plain Gaussians in place of thresholded ones, and what these take of delta."""
    taken = [Fraction(leaf.facts["delta"]) * times for leaf, times in leaves if leaf.kind == _THRESHOLDED]
    return merged((_plain(leaf), times) for leaf, times in leaves), sum(taken, Fraction(0))


def _plain(leaf: Leaf) -> Leaf:
    if leaf.kind != _THRESHOLDED:
        return leaf
    facts = {"noise_multiplier": leaf.sigma}
    return Leaf(rows.canonical({"kind": "gaussian", "inside": [], **facts}), "gaussian", facts)


def compose(leaves: Leaves) -> DpEvent:
    """All leaves as one event of dp_accounting."""
    return ComposedDpEvent([SelfComposedDpEvent(leaf.to_library(), times) for leaf, times in leaves])


def _walk(event: Any, times: int, depth: int, where: str) -> Iterator[tuple[Leaf, int]]:
    kind = event.get("kind") if isinstance(event, dict) else None
    if depth >= MAX_DEPTH or not isinstance(kind, str) or kind not in _KEYS:
        rows.fail(where, "holds an event of unknown kind, or one nested too deep")
    rows.mapping(event, _KEYS[kind] | {"kind"}, where, "events")
    if kind == "self-composed":
        count = rows.whole(event["count"], 1, rows.MAX_COUNT, where, "events")
        yield from _walk(event["event"], times * count, depth + 1, where)
    elif kind == "composed":
        parts = rows.items(event["events"], where, "events")
        if not parts:
            rows.fail(where, "holds an empty composition")
        for part in parts:
            yield from _walk(part, times, depth + 1, where)
    else:
        yield _leaf(event, kind, depth, where), times


def _leaf(event: Row, kind: str, depth: int, where: str) -> Leaf:
    inside = merged(_walk(event["event"], 1, depth + 1, where)) if "event" in _KEYS[kind] else ()
    facts = {key: _fact(event[key], key, where) for key in sorted(_KEYS[kind] - {"event"})}
    if kind == "mixture-of-gaussians":
        _check_mixture(facts["sensitivities"], facts["sampling_probs"], where)
    trial = [[leaf.text, times] for leaf, times in inside]
    return Leaf(rows.canonical({"kind": kind, "inside": trial, **facts}), kind, facts, inside)


def _fact(value: Any, key: str, where: str) -> Any:
    if key in ("sensitivities", "sampling_probs"):
        most, least = (1e100 if key == "sensitivities" else 1.0), math.nextafter(0.0, -1.0)
        return [rows.number(part, least, most, where, "events") for part in rows.items(value, where, "events")]
    if key == "tokens":
        return rows.whole(value, 1, rows.MAX_COUNT, where, "events")
    if key == "shape":
        poisson = isinstance(value, str) and value == "poisson"
        return value if poisson else rows.number(value, math.nextafter(0.0, -1.0), 1e6, where, "events")
    if key == "sensitive":
        return rows.digest(value, where, "events")
    above, most = _RANGES[key]
    return rows.number(value, above, most, where, "events")


def _check_mixture(sizes: list[float], probabilities: list[float], where: str) -> None:
    matched = len(sizes) == len(probabilities) <= MAX_PARTS and abs(math.fsum(probabilities) - 1) <= 1e-9
    if not matched or not any(size > 0 and p > 0 for size, p in zip(sizes, probabilities, strict=True)):
        rows.fail(where, "holds a mixture that is none")


def winner(trial: Curve, order: float, mean: float, shape: float | str) -> tuple[float, float] | None:
    """The least and the greatest cost that an honest store may record; None when a trial has no cost."""
    single = trial(order)
    curve = [(b, found[0]) for b in sorted({*GRID, order}) if (found := trial(b)) is not None]
    if single is None or not curve:
        return None
    try:
        least = min(_cost(curve, b, r, mean, shape) for b, r in curve if b >= order)
        most = _cost([(order, single[1])], order, single[1], mean, shape)
    except (ArithmeticError, ValueError, RuntimeError):
        return None
    return least * (1 - _TOLERANCE), most * (1 + _TOLERANCE)


def _cost(curve: list[tuple[float, float]], order: float, cost: float, mean: float, shape: float | str) -> float:
    if isinstance(shape, str):
        target = math.log1p(1 / (order - 1))
        logs = ((b - 1) * (r - target + math.log1p(-1 / b)) - math.log(b) for b, r in curve)
        extra = mean * math.exp(min(0.0, *logs))
    else:
        log_stop = _log_stopping_chance(mean, shape)
        extra = (1 + shape) * min((1 - 1 / b) * r - log_stop / b for b, r in curve)
    return cost + math.log(mean) / (order - 1) + extra


def _log_stopping_chance(mean: float, shape: float) -> float:
    """log gamma, from mean = shape (1/gamma - 1) / (1 - gamma^shape), or its limit for shape 0."""

    def excess(span: float) -> float:
        below = -math.expm1(-shape * span) / shape if shape > 0 else span
        return math.log(math.expm1(span)) - math.log(below) - math.log(mean)

    return -float(brentq(excess, 1e-12, 60.0, xtol=1e-14))


def price(leaves: Leaves, pricing: Pricing) -> Price | None:
    """The cost of an event: of its leaves, each times its runs; None when one of them has no price."""
    lows, highs = [], []
    for leaf, times in leaves:
        found = pricing(leaf)
        if found is None or not all(0 <= bound < math.inf for bound in found):
            return None
        lows.append(found[0] * times)
        highs.append(found[1] * times)
    total = math.fsum(lows), math.fsum(highs)
    return total if math.isfinite(total[1]) else None


def mu_squared(leaf: Leaf) -> Price | None:
    """1 / sigma^2, for Gaussian noise only."""
    return (leaf.sigma**-2.0,) * 2 if leaf.kind == "gaussian" else None


def rho(leaf: Leaf) -> Price | None:
    """The zCDP rho of Gaussian noise, and of Laplace noise by way of pure epsilon = 1/b."""
    return (leaf.sigma**-2.0 / 2,) * 2 if leaf.kind in ("gaussian", "laplace") else None


def metric(leaf: Leaf) -> Price | None:
    """tokens * (epsilon * diameter + keep_cost), for metric local privacy only."""
    if leaf.kind not in ("metric-local", "metric-local-sensitive"):
        return None
    token = leaf.facts["epsilon"] * leaf.facts["diameter"] + leaf.facts.get("keep_cost", 0.0)
    return (leaf.facts["tokens"] * token,) * 2


@lru_cache(maxsize=65536)
def renyi_at(leaf: Leaf, order: float) -> Price | None:
    """The Renyi cost of a leaf at an order; None for what has no Renyi bound."""
    if leaf.kind == "gaussian" or (leaf.kind == "poisson-sampled-gaussian" and leaf.q == 1):
        return (order * leaf.sigma**-2.0 / 2,) * 2
    if leaf.kind == "poisson-sampled-gaussian":
        cost = _sampled(leaf, order)
        return cost, cost + max(_SAMPLED_SLACK, 2.0**-50 * float(gammaln(order + 1)) * (order > 4096)) / (order - 1)
    if leaf.kind == "laplace":
        return (_by_library(leaf, order),) * 2
    if leaf.kind == "repeat-and-select":
        return winner(
            lambda at: price(leaf.inside, partial(renyi_at, order=at)), order, leaf.facts["mean"], leaf.facts["shape"]
        )
    return None


def _sampled(leaf: Leaf, order: float) -> float:
    if not order.is_integer():
        found = _by_library(leaf, order)
        if math.isfinite(found):
            return found
        order = float(math.ceil(order))  # the library's series did not converge: the next order costs no less
    i = np.arange(2.0, order + 1)
    gain = i * (i - 1) * (leaf.sigma**-2.0 / 2)
    ways = gammaln(order + 1) - gammaln(i + 1) - gammaln(order - i + 1)
    with np.errstate(all="ignore"):
        growth = np.where(gain > 1, gain + np.log1p(-np.exp(-gain)), np.log(np.expm1(np.minimum(gain, 1.0))))
        excess = logsumexp(ways + i * math.log(leaf.q) + (order - i) * math.log1p(-leaf.q) + growth)
    return float(np.logaddexp(0.0, excess)) / (order - 1)


def _by_library(leaf: Leaf, order: float) -> float:
    accountant = RdpAccountant([order], NeighboringRelation.ADD_OR_REMOVE_ONE)
    with np.errstate(all="ignore"):
        try:
            accountant.compose(leaf.to_library())
        except (ArithmeticError, ValueError):
            return math.inf
    return float(accountant.rdp[0])
