"""The admission rules of accounts: what a charge costs, and how much an account admits.

A cost is a vector of integers, so that sums are exact whatever the order, and a cancelled charge leaves again exactly.
Those of a rule that adds up prices are multiples of 2^-80, rounded up, and the cap is rounded down.

>>> up(0.5) == 2**79, up(Fraction(1, 3)) + up(Fraction(2, 3)) > down(1.0)
(True, True)

Each composition has one rule:

- `gdp`, for Gaussian events: the sum of 1 / sigma_eff^2 is at most mu*^2, where mu* is the largest mu whose curve fits
  (epsilon*, delta*). Exact, and valid under full adaptivity at no cost (Smith & Thakurta 2022; Koskela et al. 2023).
- `zcdp`, for Gaussian and Laplace events: the sum of rho is at most rho*, the largest rho whose conversion fits the
  cap. Valid under full adaptivity (Rogers et al. 2016; Feldman & Zrnic 2021); on Gaussian events alone, GDP is never
  worse.
- `rdp`, at one order alpha* fixed in advance: the Renyi costs sum to no more than what converts to (epsilon*, delta*).
  Renyi costs at a fixed order add up under full adaptivity; choosing the order afterwards would not be valid (Feldman &
  Zrnic 2021). So the order is chosen from the plan, before the first charge.
- `metric`, metric local privacy: a token is epsilon * d(x, x') private, so a document of at most L tokens whose
  distances are at most D is L * epsilon * D private; runs on the same document add up (Feyisetan et al. 2020; SanText,
  Yue et al. 2021). That holds for the words that all of them protect: two lists of protected words make two accounts
  (`accounts.check_words`).
- `pld`, a pre-registered plan. Numerical privacy loss distributions compose tightly, but only for events fixed before
  the first answer: a filter on them is not valid under full adaptivity. A plan fixes the events. Whatever is then run
  is paid by a line of the plan that dominates it (sampled no less often, with no more noise). Order and early stopping
  may depend on earlier answers: the losses of the lines are independent given the past, so their sum has the same
  distribution in any order, and running less is post-processing of running all. A cost is a count for each line, so an
  event finds its line when it is reserved, and what is cancelled goes back there.

**Releases with a threshold** cost a delta of their own (`accounting.events`). An account may keep a part of its delta
for them (`threshold_delta`), fixed when it is opened: deltas add up to no more than that part, and the rule of the
account is that of its epsilon with the rest of delta. So there are two filters, one for each part, and the proof of
each holds on every path: some symbol that gives a unit away comes out with a probability of at most the part, and
without any the account is a composition of Gaussians within (epsilon, rest). It would not do to take off whatever
deltas there are before each comparison, without a part that is fixed. Who looks at the earlier answers could then spend
delta on thresholds where these are harmless, and on noise where they nearly gave a unit away: at epsilon 3 and delta
1e-6 this reaches a delta of 2e-6 (tests/proofs/accounting/test_thresholds.py). In a registered plan the deltas of all
lines are fixed with it, and are taken off before its epsilon is computed.

>>> rule = rule_for("gdp", Budget(3.0, 1e-6), {})
>>> half = (rule.limit // 2,)
>>> rule.admits(half), rule.admits((rule.limit + 1,))
(True, False)
"""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from typing import Any, Protocol

from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting import accountant, events, gaussian, renyi
from rayprivacy.core.errors import ConfigError, EventError
from rayprivacy.core.units import Budget

GRID = 2**80
THRESHOLD_DELTA = "threshold_delta"  # a parameter of an account, the part of its delta that is kept for thresholds

Vector = tuple[int, ...]
Lines = tuple[tuple[DpEvent, int], ...]


class Rule(Protocol):
    """A rule with the account's cap in it; costs have `size` numbers, and `claim` names its accountant."""

    size: int
    claim: str

    def cost(self, event: DpEvent, used: Vector) -> Vector:
        """The cost of the event on top of `used`; EventError when the rule does not take such an event."""

    def admits(self, used: Vector) -> bool:
        """Whether the cap holds when this much is used in total."""

    def share(self, used: Vector) -> float:
        """Part of the cap, or of the plan, that is used, for people: the shares of charges add up to that of all."""

    def epsilon(self, used: Vector) -> float:
        """The epsilon of this cost, at the account's delta: a diagnostic."""

    def left(self, used: Vector) -> float:
        """The largest epsilon, at the account's delta, that one more release may ask for."""

    def thresholds(self, used: Vector) -> tuple[Fraction, Fraction]:
        """What thresholds have taken of the part of delta that is kept for them, and that part."""


class SumRule:
    """Adds up prices of events within a limit; `epsilon_of` is that of a sum. Its functions must pickle: it travels.

    Where a part of the account's delta is `kept` for thresholds, what these take is a second sum, within that part.
    """

    def __init__(
        self,
        budget: Budget,
        limit: float,
        price: Callable[[DpEvent], float | Fraction],
        epsilon_of: Callable[[float], float],
        claim: str,
        kept: float = 0.0,
    ) -> None:
        self.size = 2 if kept else 1
        self._kept = down(kept)
        self._budget = budget
        self._price = price
        self._epsilon_of = epsilon_of
        self.limit = down(limit)
        self.claim = f"{claim}, delta {kept:g} kept for thresholds" if kept else claim

    def cost(self, event: DpEvent, used: Vector) -> Vector:
        """The price, and what thresholds take, rounded up; neither depends on `used`."""
        (plain,), taken = events.without_thresholds([event])
        if taken and not self._kept:
            least = events.round_up(Fraction(threshold_units([event]), GRID))
            raise EventError(
                "the release has a threshold, for which the account keeps no part of its delta: open another account"
                f" with `rayprivacy ledger create --threshold-delta {least}`."
            )
        return (up(self._price(plain)), threshold_units([event]))[: self.size]

    def admits(self, used: Vector) -> bool:
        """Whether the sums are within the limits."""
        return used[0] <= self.limit and sum(used[1:]) <= self._kept

    def share(self, used: Vector) -> float:
        """Part of the limit that is used."""
        return used[0] / self.limit

    def epsilon(self, used: Vector) -> float:
        """The epsilon of the sum."""
        return self._epsilon_of(used[0] / GRID)

    def left(self, used: Vector) -> float:
        """The epsilon of the rest of the limit."""
        return min(self._budget.epsilon, self.epsilon((max(0, self.limit - used[0]),)))

    def thresholds(self, used: Vector) -> tuple[Fraction, Fraction]:
        """The second sum and its limit."""
        return Fraction(sum(used[1:]), GRID), Fraction(self._kept, GRID)


class PlanRule:
    """Counts the runs of the plan's lines that are used up; there are no lines before a plan is registered."""

    claim = "privacy loss distributions of the registered plan (PLD)"

    def __init__(self, budget: Budget, lines: Lines) -> None:
        self._budget = budget
        self.lines = lines
        self.size = len(lines)

    @property
    def planned(self) -> Vector:
        """How often each line may run."""
        return tuple(most for _, most in self.lines)

    def cost(self, event: DpEvent, used: Vector) -> Vector:
        """The lines that pay for the event, the least costly one that dominates it first."""
        if not self.lines:
            raise EventError("the account has no plan yet: register one with `rayprivacy ledger register-plan`.")
        events.validate(event)
        cost = [0] * self.size
        for leaf, times in events.leaves(event):
            able = [i for i, (line, _) in enumerate(self.lines) if accountant.dominates(line, leaf)]
            if not able:
                raise EventError(f"{leaf} is neither in the account's plan nor dominated by it: keep to the plan.")
            self._pay(able, times, used, cost)
        return tuple(cost)

    def admits(self, used: Vector) -> bool:
        """Whether every line was used at most as often as planned."""
        return all(count <= most for count, most in zip(used, self.planned, strict=True))

    def share(self, used: Vector) -> float:
        """Part of the plan that has run, each run counted by about what it loses."""
        whole = sum(map(operator.mul, self._weights, self.planned))
        return sum(map(operator.mul, self._weights, used)) / whole if whole else 0.0

    def epsilon(self, used: Vector) -> float:
        """The epsilon of the lines used so far, by PLD."""
        run = tuple((line, count) for (line, _), count in zip(self.lines, used, strict=True) if count > 0)
        return _plan_epsilon(run, self._budget.delta)

    def left(self, used: Vector) -> float:
        """The epsilon of the lines that are not used yet, by PLD."""
        return self.epsilon(tuple(map(operator.sub, self.planned, used)))

    def thresholds(self, used: Vector) -> tuple[Fraction, Fraction]:
        """Nothing: what they take is in the epsilon of the plan."""
        return Fraction(0), Fraction(0)

    @cached_property
    def _weights(self) -> tuple[float, ...]:
        """The Renyi cost of order 2 of each line, about its mean square loss; 1 for all where one of them has none."""
        try:
            return tuple(renyi.rdp(line, (2.0,))[0] for line, _ in self.lines)
        except EventError:
            return (1.0,) * self.size

    def _pay(self, able: list[int], times: int, used: Vector, cost: list[int]) -> None:
        """Let the lines that are able to pay for a mechanism do so, in `cost`."""

        # A line dominated by another paying line is the cheaper one, and goes first; the last one takes what is over.
        def dominated_by(i: int) -> int:
            return sum(accountant.dominates(self.lines[j][0], self.lines[i][0]) for j in able)

        paying = sorted(able, key=dominated_by, reverse=True)
        for i in paying:
            take = min(times, max(0, self.lines[i][1] - used[i] - cost[i]))
            cost[i] += take
            times -= take
        cost[paying[-1]] += times


@lru_cache(maxsize=256)
def _plan_epsilon(lines: Lines, delta: float) -> float:
    return accountant.plan_epsilon(lines, delta) if lines else 0.0


def _gdp(budget: Budget, kept: float) -> SumRule:
    mu = gaussian.mu_of(budget)
    return SumRule(
        budget,
        mu * mu * (1 - 2**-52),  # the float product may be rounded up
        accountant.gdp_cost,
        partial(_gdp_epsilon, delta=budget.delta),
        "analytic Gaussian (GDP filter)",
        kept,
    )


def _gdp_epsilon(spent: float, delta: float) -> float:
    return gaussian.epsilon_of(math.sqrt(spent), delta)


def _zcdp(budget: Budget, kept: float) -> SumRule:
    return SumRule(
        budget,
        gaussian.rho_cap(budget),
        gaussian.rho,
        partial(gaussian.epsilon_of_rho, delta=budget.delta),
        "zero-concentrated DP (zCDP filter)",
        kept,
    )


def _rdp(budget: Budget, kept: float, order: float) -> SumRule:
    return SumRule(
        budget,
        renyi.rdp_cap(order, budget),
        partial(_rdp_price, order=order),
        partial(_rdp_epsilon, order=order, delta=budget.delta),
        f"Renyi DP at order {order:g} (RDP filter)",
        kept,
    )


def _rdp_price(event: DpEvent, order: float) -> float:
    return renyi.rdp(event, (order,))[0]


def _rdp_epsilon(spent: float, order: float, delta: float) -> float:
    return renyi.epsilon_at(spent, order, delta) if spent else 0.0


def _metric_price(event: DpEvent) -> Fraction:
    """Tokens times (epsilon times diameter, and the cost of words that are kept), for the words of one list."""
    events.protected_by(event)  # refuses parts that protect two lists
    total = Fraction(0)
    for leaf, times in events.leaves(event):
        if type(leaf) is not events.MetricLocalDpEvent:
            raise EventError(f"the event is a {type(leaf).__name__}: composition 'metric' takes metric-local events.")
        total += events.exact_epsilon(leaf) * times
    return total


def _parts(budget: Budget, parameters: Mapping[str, Any]) -> tuple[Budget, float]:
    """The budget of an account's noise, and the part of its delta that is kept for thresholds."""
    kept = float(parameters.get(THRESHOLD_DELTA, 0.0))
    return (less(budget, kept) if kept else budget), kept


def less(budget: Budget, kept: float) -> Budget:
    """The budget without the part of its delta that is kept for thresholds; ConfigError where that is all of it.

    >>> less(Budget(3.0, 1e-6), 5e-7)
    Budget(epsilon=3.0, delta=5e-07)
    """
    if not 0 < kept < budget.delta:
        raise ConfigError(
            f"thresholds take delta {kept:.6g}, and the account's is {budget.delta:.6g}: give them a part of it."
        )
    return Budget(budget.epsilon, events.delta_left(budget.delta, Fraction(kept)))


def threshold_units(found: Iterable[DpEvent]) -> int:
    """The deltas of thresholds together, each rounded up to the grid, so that parts of a charge add up to the whole."""
    return sum(
        up(leaf.delta) * times
        for event in found
        for leaf, times in events.checked_leaves(event)
        if type(leaf) is events.ThresholdedGaussianDpEvent
    )


_DOCUMENTS = "basic composition of metric local privacy, per document"
_RULES: dict[str, Callable[[Budget, Mapping[str, Any], Lines], Rule]] = {
    "gdp": lambda budget, parameters, lines: _gdp(*_parts(budget, parameters)),
    "zcdp": lambda budget, parameters, lines: _zcdp(*_parts(budget, parameters)),
    "rdp": lambda budget, parameters, lines: _rdp(*_parts(budget, parameters), float(parameters["order"])),
    "pld": lambda budget, parameters, lines: PlanRule(budget, lines),
    "metric": lambda budget, parameters, lines: SumRule(budget, budget.epsilon, _metric_price, float, _DOCUMENTS),
}
COMPOSITIONS = tuple(_RULES)


def rule_for(composition: str, budget: Budget, parameters: Mapping[str, Any], lines: Lines = ()) -> Rule:
    """The rule of an account; ConfigError when it is unknown, or its order leaves nothing of the cap."""
    if composition not in _RULES:
        raise ConfigError(f"privacy.composition is {composition!r}: use one of {', '.join(COMPOSITIONS)}.")
    return _RULES[composition](budget, parameters, lines)


def parameters_for(
    composition: str,
    budget: Budget,
    order: float | None = None,
    plan: Sequence[DpEvent] = (),
    threshold_delta: float | None = None,
) -> dict[str, Any]:
    """The parameters of a new account's rule: the given RDP order, or the best one for a plan; and the part of delta
    that is kept for thresholds, the given one or what those of a plan take.
    """
    kept = _kept(composition, plan, threshold_delta)
    rest = less(budget, kept) if kept is not None else budget
    parameters: dict[str, Any] = {} if kept is None else {THRESHOLD_DELTA: kept}
    return parameters | _order(composition, rest, order, plan)


def _kept(composition: str, plan: Sequence[DpEvent], given: float | None) -> float | None:
    if composition not in ("gdp", "zcdp", "rdp"):
        if given is not None:
            raise ConfigError(
                f"threshold_delta is {given} and composition is '{composition}': only 'gdp', 'zcdp' and 'rdp' take one."
            )
        return None
    planned = threshold_units(plan)
    if given is None:
        return events.round_up(Fraction(planned, GRID)) if planned else None
    if planned and given < planned / GRID:
        raise ConfigError(
            f"threshold_delta is {given:g}, and the thresholds of the plan take {planned / GRID:.6g}: raise it."
        )
    return float(given)


def _order(composition: str, budget: Budget, order: float | None, plan: Sequence[DpEvent]) -> dict[str, float]:
    if composition != "rdp":
        if order is not None:
            raise ConfigError(f"order is {order} and composition is '{composition}': only 'rdp' takes one.")
        return {}
    if order is None and not plan:
        raise ConfigError("composition is 'rdp' and there is no order: give one, e.g. 8, or a plan to choose it from.")
    return {"order": float(order) if order is not None else _order_of(plan, budget)}


def _order_of(plan: Sequence[DpEvent], budget: Budget) -> float:
    order = renyi.best_order(events.without_thresholds(plan)[0], budget.delta)
    try:
        renyi.rdp_cap(order, budget)
    except ConfigError:
        raise ConfigError(
            f"the account's epsilon {budget.epsilon:g} at delta {budget.delta:g} is far less than the plan costs: raise"
            " it, or plan less."
        ) from None
    return order


def up(value: float | Fraction) -> int:
    """The smallest multiple of the grid that is not below a finite value."""
    return -((-Fraction(value) * GRID) // 1)


def down(value: float | Fraction) -> int:
    """The largest multiple of the grid that is not above a finite value."""
    return (Fraction(value) * GRID) // 1


def total(vectors: Iterable[Vector], size: int) -> Vector:
    """The sum of vectors of one size."""
    return tuple(map(sum, zip(*vectors, strict=True))) or (0,) * size
