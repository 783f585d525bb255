"""Admission as the auditor sees it: a cost per charge, a limit per account.

Every cost is an integer in units of 2^-80, so that sums are exact. What the limit means depends on the composition:

    gdp       sum of 1/sigma^2  <= 1/s^2, s the noise at which dp_accounting's Gaussian curve meets (epsilon, delta)
    zcdp      sum of rho        <= max over a of (epsilon - log((a-1)/a) + (log delta + log a)/(a-1)) / a
    rdp       sum at order a    <= epsilon - log((a-1)/a) + (log delta + log a)/(a-1)
    metric    sum of epsilons   <= epsilon

The zCDP line is the conversion of Canonne, Kamath & Steinke solved for rho: a cap holds when it holds at one order, and
at a given order it is linear in rho.

An account may keep a part of its delta for thresholds. Its rule is then that of the rest of delta, with noise of
thresholded events like any other, and a second sum: of their deltas, which must stay within that part. In a plan they
are taken off delta before its epsilon is computed.

Composition pld counts instead of adding, because the tight figure holds for the registered plan alone. A `plan` entry
lists mechanisms (*lines*) with how often each may run. Its epsilon, by privacy loss distributions, must be within the
account's cap; from then on a charge is a count for each line, and is honest when its leaves can be shared out among
exactly those counts so that each is paid by a line that covers it. A line covers a leaf that samples no more often and
adds no less noise; kinds without such an order cover only themselves.

Whether the leaves can be shared out is decided exactly by one sweep: from the most often sampled leaf to the least,
take the noisiest line that still covers it. Lines that sample enough for this leaf do so for every later one, so only
noise matters from here on, and the noisiest usable line is the one later leaves can best spare.
"""

import bisect
import math
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache, partial

import numpy as np
from dp_accounting import NeighboringRelation, UnsupportedEventError, get_epsilon_gaussian, get_sigma_gaussian
from dp_accounting.dp_event import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from scipy.special import logsumexp

from rayprivacy.ledger.audit import prices, rows
from rayprivacy.ledger.audit.prices import Leaf, Leaves, compose, flatten, merged, read_leaves, without_thresholds
from rayprivacy.ledger.audit.rows import Row
from rayprivacy.ledger.audit.terms import Terms

UNIT = 2**80
SLACK = {"gdp": 1e-6, "zcdp": 1e-4, "rdp": 1e-6, "metric": 1e-9}
_ALPHAS = 1 + np.logspace(-9, 12, 40001)
MOST_LOSS = 1000.0  # a loss distribution that reaches further takes hours
_SLACK, _STATED = 1e-4, 1e-3  # relative; two grids of this fineness differ by less
_STEPS = (1e-5, 1e-4)  # of a grid, the finest and the coarsest
_GUARD_ORDERS = (1.05, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0, 64.0)
_FAMILIES = {"gaussian": "gaussian", "poisson-sampled-gaussian": "gaussian", "laplace": "laplace"}

Vector = tuple[int, ...]


class SumRule:
    """The rule of every composition but pld: a sum of costs and its limit, and the same for what thresholds take."""

    def __init__(self, terms: Terms, where: str) -> None:
        self.size = 2 if terms.keeps_delta else 1
        self._composition = terms.composition
        self._kept = math.floor(Fraction(terms.kept_delta) * UNIT)
        self._pricing = _pricing(terms)
        self._limit = _limit(terms, terms.epsilon, where)
        self._slack_limit = _limit(terms, terms.epsilon * (1 + SLACK[terms.composition]), where)
        self._known: dict[str, list[tuple[int, int]]] = {}

    def check_cost(self, events: str, cost: Vector, where: str) -> None:
        """Refuse a cost below the price or clearly above it."""
        if events not in self._known:
            found = self._price(events, where)
            if found is None:
                rows.fail(where, f"holds an event that composition '{self._composition}' does not take")
            self._known[events] = found
        pairs = zip(cost, self._known[events], strict=False)
        if len(cost) != self.size or not all(low <= part <= high for part, (low, high) in pairs):
            rows.fail(where, "records a cost that is not what its event costs")

    def pays(self, events: str, cost: Vector, where: str) -> bool | None:
        """Whether the price is not above the cost."""
        bounds = self._price(events, where)
        if bounds is None or any(part < low for part, (low, _) in zip(cost, bounds, strict=True)):
            return False
        return True if all(part >= high for part, (_, high) in zip(cost, bounds, strict=True)) else None

    def fits(self, live: Vector) -> bool:
        """Whether the sums are within the limits."""
        return live[0] <= self._slack_limit and sum(live[1:]) <= self._kept

    def left(self, live: Vector) -> list[float]:
        """Limits less sums, not below 0."""
        limits = (self._limit, self._kept)
        return [max(0, limit - part) / UNIT for limit, part in zip(limits, live, strict=False)]

    def _price(self, events: str, where: str) -> list[tuple[int, int]] | None:
        """The least and the most that an event may cost, in each sum; None where the rule does not take it."""
        leaves = read_leaves(events, where)
        plain, taken = without_thresholds(leaves) if self.size == 2 else (leaves, Fraction(0))
        found = prices.price(plain, self._pricing)
        if found is None:
            return None
        low, high = Fraction(found[0]) * (1 - Fraction(1, 10**9)), Fraction(found[1]) * (1 + Fraction(1, 10**6))
        price = math.ceil(low * UNIT), math.ceil((high + Fraction(1, 2**70)) * UNIT)
        runs = sum(times for leaf, times in leaves if "delta" in leaf.facts)  # each may be rounded up
        return [price, (math.ceil(taken * UNIT), math.floor(taken * UNIT) + runs)][: self.size]


def _pricing(terms: Terms) -> prices.Pricing:
    if terms.composition == "rdp":
        return partial(prices.renyi_at, order=float(terms.parameters["order"]))
    return {"gdp": prices.mu_squared, "zcdp": prices.rho, "metric": prices.metric}[terms.composition]


def _limit(terms: Terms, epsilon: float, where: str) -> int:
    with np.errstate(all="ignore"):
        try:
            return math.floor(Fraction(_real_limit(terms, epsilon)) * UNIT)
        except (ArithmeticError, ValueError, RuntimeError):
            rows.fail(where, "states a cap that no formula here can check")


def _real_limit(terms: Terms, epsilon: float) -> float:
    delta = terms.delta - terms.kept_delta
    if terms.composition == "gdp":
        return math.pow(get_sigma_gaussian(epsilon, delta), -2.0)
    if terms.composition == "zcdp":
        gains = (np.log(delta) + np.log(_ALPHAS)) / (_ALPHAS - 1) - np.log1p(-1 / _ALPHAS)
        return float(np.max((epsilon + gains) / _ALPHAS))
    if terms.composition == "rdp":
        order, log_delta = float(terms.parameters["order"]), math.log(delta)
        return epsilon - math.log((order - 1) / order) + (log_delta + math.log(order)) / (order - 1)
    return epsilon


class PlanRule:
    """The rule of composition pld; without lines until a plan is registered."""

    def __init__(self, lines: Leaves = ()) -> None:
        self._lines = lines
        self.size = len(lines)
        self._known: dict[tuple[str, Vector], bool] = {}

    def check_cost(self, events: str, cost: Vector, where: str) -> None:
        """Refuse counts that cannot have paid for the event."""
        if not self._lines:
            rows.fail(where, "reserves from a plan that is not registered yet")
        if (events, cost) not in self._known:
            leaves = read_leaves(events, where)
            self._known[events, cost] = len(cost) == self.size and self._pays(leaves, cost)
        if not self._known[events, cost]:
            rows.fail(where, "records a cost that is not what its event costs under the plan")

    def pays(self, events: str, cost: Vector, where: str) -> bool | None:
        """Whether some of the runs that the cost took pay for the event; never for sure: there are several ways."""
        leaves = read_leaves(events, where)
        paying = self._paying(cost)
        able = all(_has_room(_of(group, leaves), _of(group, paying)) for group in {_group(leaf) for leaf, _ in leaves})
        return None if able else False

    def fits(self, live: Vector) -> bool:
        """Whether no line was used more often than planned."""
        return all(used <= most for used, (_, most) in zip(live, self._lines, strict=True))

    def left(self, live: Vector) -> list[float]:
        """Runs left of each line."""
        return [float(max(0, most - used)) for used, (_, most) in zip(live, self._lines, strict=True)]

    def _pays(self, leaves: Leaves, cost: Vector) -> bool:
        paying = self._paying(cost)
        groups = {_group(leaf) for leaf, _ in (*leaves, *paying)}
        return all(shares_out(_of(group, leaves), _of(group, paying)) for group in groups)

    def _paying(self, cost: Vector) -> list[tuple[Leaf, int]]:
        return [(line, count) for (line, _), count in zip(self._lines, cost, strict=True) if count]


Rule = SumRule | PlanRule


def read_plan(row: Row, terms: Terms, where: str) -> PlanRule:
    """The rule that a `plan` entry registers."""
    plan = rows.read_mapping(row, "detail", {"events", "counts", "epsilon"}, where)
    stated = rows.number(plan["epsilon"], -1.0, 1e300, where, "detail")
    events, counts = rows.items(plan["events"], where, "detail"), rows.items(plan["counts"], where, "detail")
    if not 1 <= len(events) == len(counts) <= 1000:
        rows.fail(where, "lists no events with as many counts")
    lines = []
    for event, count in zip(events, counts, strict=True):
        leaves = flatten(event, where)
        if len(leaves) != 1 or leaves[0][1] != 1:
            rows.fail(where, "lists an event that is not one basic mechanism")
        lines.append((leaves[0][0], rows.whole(count, 1, rows.MAX_COUNT, where, "detail")))
    distinct, taken = without_thresholds(merged(lines))
    delta = terms.delta - float(taken)
    if not delta > 0:
        rows.fail(where, "lists a plan whose thresholds take all of the account's delta")
    reach = _guard(distinct, where)
    found = _epsilon(distinct, delta, _grid_step(distinct, reach))
    if found is None:
        rows.fail(where, "lists a plan that has no privacy loss distribution")
    if not found <= terms.epsilon * (1 + _SLACK) or not stated <= terms.epsilon * (1 + _SLACK):
        rows.fail(where, f"exceeds the cap of account {terms.name!r}")
    if stated < found - _STATED * max(found, 1e-3):  # a plan may state more, by careful rounding
        rows.fail(where, "states an epsilon that is not the plan's")
    return PlanRule(tuple(lines))


def _group(leaf: Leaf) -> str:
    return _FAMILIES.get(leaf.kind, leaf.text)


def _of(group: str, leaves: Iterable[tuple[Leaf, int]]) -> list[tuple[Leaf, int]]:
    return [(leaf, times) for leaf, times in leaves if _group(leaf) == group]


def shares_out(leaves: list[tuple[Leaf, int]], lines: list[tuple[Leaf, int]]) -> bool:
    """Whether these leaves, all of one family, use up exactly these runs of lines, each paid by one that covers it."""
    return sum(times for _, times in leaves) == sum(count for _, count in lines) and _has_room(leaves, lines)


def _has_room(leaves: list[tuple[Leaf, int]], lines: list[tuple[Leaf, int]]) -> bool:
    """Whether these leaves, all of one family, can be paid by these runs of lines, or by some of them."""
    if sum(times for _, times in leaves) > sum(count for _, count in lines):
        return False
    if leaves[0][0].kind not in _FAMILIES:
        return True  # one group, one mechanism: the counts decide
    waiting = sorted(lines, key=lambda pair: pair[0].q)
    usable: list[list[float]] = []  # [noise, runs left], by noise
    for leaf, times in sorted(leaves, key=lambda pair: -pair[0].q):
        while waiting and waiting[-1][0].q >= leaf.q:
            line, count = waiting.pop()
            bisect.insort(usable, [line.sigma, count])
        while times:
            at = bisect.bisect_right(usable, leaf.sigma, key=lambda pair: pair[0]) - 1
            if at < 0:
                return False
            taken = int(min(times, usable[at][1]))
            times -= taken
            usable[at][1] -= taken
            if not usable[at][1]:
                del usable[at]
    return True


def _grid_step(lines: Leaves, reach: float) -> float:
    """A 25th of the usual loss of the mechanism that loses least: on a coarser grid an honest plan costs too much."""
    usual = math.sqrt(min(_second_order(leaf) for leaf, _ in lines))
    return max(_STEPS[0], reach / 1e7, min(_STEPS[1], usual / 25))


def _second_order(leaf: Leaf) -> float:
    """The Renyi cost of order 2, about the mean square of the privacy loss."""
    if leaf.kind != "mixture-of-gaussians":
        cost = prices.renyi_at(leaf, 2.0)
        return cost[0] if cost else math.inf
    sizes = np.array(leaf.facts["sensitivities"]) / leaf.facts["standard_deviation"]
    chances = np.array(leaf.facts["sampling_probs"])
    return float(np.log(chances @ np.exp(np.minimum(np.outer(sizes, sizes), 700.0)) @ chances / chances.sum() ** 2))


@lru_cache(maxsize=64)
def _epsilon(lines: Leaves, delta: float, step: float) -> float | None:
    """By dp_accounting's loss distributions; plain Gaussians are one of the same total, in closed form if alone."""
    plain = [(leaf, times) for leaf, times in lines if leaf.kind == "gaussian"]
    others = tuple((leaf, times) for leaf, times in lines if leaf.kind != "gaussian")
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, step)
    with np.errstate(all="ignore"):
        try:
            if plain:
                sigma = math.fsum(n * leaf.sigma**-2.0 for leaf, n in plain) ** -0.5
                if not others:
                    return float(get_epsilon_gaussian(sigma, delta))
                accountant.compose(GaussianDpEvent(sigma))
            accountant.compose(compose(others))
            return float(accountant.get_epsilon(delta))
        except (ArithmeticError, ValueError, MemoryError, UnsupportedEventError):
            return None


def _guard(lines: Leaves, where: str) -> float:
    """A loss that all mechanisms exceed with a chance of about 1e-15; refuses plans that would take hours to audit."""
    reach = 0.0
    for leaf, times in lines:
        noisy = _noise(leaf)
        if noisy is None or noisy.sigma <= 0.04:
            rows.fail(where, "lists a plan that has no privacy loss distribution")
        found = [(_renyi_bound(leaf, order), order) for order in _GUARD_ORDERS]
        reach += min(cost * times - math.log(1e-15) / (order - 1) for cost, order in found)
    if not reach <= MOST_LOSS:
        rows.fail(where, f"lists a plan whose privacy loss may reach {reach:.3g}")
    return reach


def _renyi_bound(leaf: Leaf, order: float) -> float:
    """A bound on the Renyi cost of a leaf at an order; of a mixture by convexity, and exact at order 2."""
    if leaf.kind != "mixture-of-gaussians":
        cost = prices.renyi_at(leaf, order)
        return cost[1] if cost else math.inf
    sizes = np.array(leaf.facts["sensitivities"]) / leaf.facts["standard_deviation"]
    chances = np.array(leaf.facts["sampling_probs"])
    with np.errstate(divide="ignore"):
        bound = float(logsumexp(np.log(chances) + order * (order - 1) / 2 * sizes**2)) / (order - 1)
    return min(bound, _second_order(leaf)) if order <= 2 else bound


def _noise(leaf: Leaf) -> Leaf | None:
    """A mechanism with Renyi costs that costs no less: for a mixture, one sampled Gaussian of its largest part."""
    if leaf.kind in _FAMILIES:
        return leaf
    if leaf.kind != "mixture-of-gaussians":
        return None
    pairs = list(zip(leaf.facts["sensitivities"], leaf.facts["sampling_probs"], strict=True))
    q = min(1.0, math.fsum(p for size, p in pairs if size > 0))
    sigma = leaf.facts["standard_deviation"] / max(size for size, p in pairs if p > 0)
    facts = {"sampling_probability": q, "noise_multiplier": sigma}
    return Leaf(rows.canonical(["mixture", q, sigma]), "poisson-sampled-gaussian", facts)
