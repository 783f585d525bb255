"""Which rule an account has, and the parameters that its rule fixes when it is opened.

Costs as integers: exact sums that no order of addition can change, and that a cancelled charge leaves again exactly.

A cost is a vector of multiples of 2^-80, rounded up; a cap is rounded down. Python's integers do not overflow.

>>> up(0.5) == 2**79, up(Fraction(1, 3)) + up(Fraction(2, 3)) > down(1.0)
(True, True)

Pre-registered plans: the tighter PLD figure is the claim, and only what was planned, or less, is admitted.

Numerical privacy loss distributions compose tightly, but only for events fixed before the first answer: a filter on
them is not valid under full adaptivity. A plan fixes the events. Whatever is then run is paid by a line of the plan
that dominates it (sampled no less often, with no more noise). Order and early stopping may depend on earlier answers:
the losses of the lines are independent given the past, so their sum has the same distribution in any order, and running
less is post-processing of running all.

A cost is a count for each line, so an event finds its line when it is reserved, and what is cancelled goes back there.

What an admission rule offers to the ledger, and the form of every rule that adds up one number per charge.

The GDP filter, for Gaussian events: exact, and valid under full adaptivity at no cost.

Admit while the sum of 1 / sigma_eff^2 stays within mu*^2, where mu* is the largest mu whose curve fits (epsilon*,
delta*) (Smith & Thakurta 2022; Koskela et al. 2023).

>>> rule = GdpRule(Budget(3.0, 1e-6))
>>> half = (rule.limit // 2,)
>>> rule.admits(half), rule.admits((rule.limit + 1,))
(True, False)

Metric local privacy: epsilons of documents add up, and never meet those of a central account.

Source: Feyisetan et al. 2020 and SanText (Yue et al. 2021). A token is epsilon * d(x, x') private, so a document of at
most L tokens whose distances are at most D is L * epsilon * D private; runs on the same document add up. That holds for
the words that all of them protect: two lists of protected words make two accounts (`accounts.check_words`).

The RDP filter, at one order alpha* that is fixed in advance.

Admit while the Renyi costs at alpha* sum to no more than what converts to (epsilon*, delta*). Renyi costs at a fixed
order add up under full adaptivity; choosing the order afterwards would not be valid (Feldman & Zrnic 2021). The order
is chosen from the plan, before the first charge.

The zCDP filter: the sum of rho, for Gaussian and Laplace events.

Admit while the sum stays within rho*, the largest rho whose (epsilon, delta) conversion fits the cap. It is valid
under full adaptivity (Rogers et al. 2016; Feldman & Zrnic 2021). On Gaussian events alone the GDP filter is always at
least as good; this is the rule for accounts that also take Laplace noise.
"""

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, Protocol

from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting import gaussian, renyi
from rayprivacy.accounting.accountant import dominates, gdp_cost, plan_epsilon
from rayprivacy.accounting.events import MetricLocalDpEvent, exact_epsilon, leaves, protected_by, validate
from rayprivacy.accounting.gaussian import epsilon_of, mu_of
from rayprivacy.core.errors import ConfigError, EventError
from rayprivacy.core.units import Budget

GRID = 2**80

Vector = tuple[int, ...]


def up(value: float | Fraction) -> int:
    """The smallest multiple of the grid that is not below a finite value."""
    return -((-Fraction(value) * GRID) // 1)


def down(value: float | Fraction) -> int:
    """The largest multiple of the grid that is not above a finite value."""
    return (Fraction(value) * GRID) // 1


def real(steps: int) -> float:
    """A multiple of the grid as a float."""
    return steps / GRID


def total(vectors: Iterable[Vector], size: int) -> Vector:
    """The sum of vectors of one size."""
    return tuple(map(sum, zip(*vectors, strict=True))) or (0,) * size


Lines = tuple[tuple[DpEvent, int], ...]


class PlanRule:
    """Counts of the plan's lines that are used up.

    Attributes:
        lines: the mechanisms of the plan, each with how often it may run; none before a plan is registered.
    """

    claim = "privacy loss distributions of the registered plan (PLD)"

    def __init__(self, budget: Budget, lines: Lines) -> None:
        self._budget = budget
        self.lines = lines
        self.size = len(lines)

    def cost(self, event: DpEvent, used: Vector) -> Vector:
        """The lines that pay for the event, the least costly one that dominates it first."""
        if not self.lines:
            raise EventError("the account has no plan yet: register one with `rayprivacy ledger register-plan`.")
        validate(event)
        cost = [0] * self.size
        for leaf, times in leaves(event):
            if not any(dominates(line, leaf) for line, _ in self.lines):
                raise EventError(f"{leaf} is neither in the account's plan nor dominated by it: keep to the plan.")
            self._pay(leaf, times, used, cost)
        return tuple(cost)

    def admits(self, used: Vector) -> bool:
        """Whether every line was used at most as often as planned."""
        return all(count <= most for count, (_, most) in zip(used, self.lines, strict=True))

    def share(self, used: Vector) -> float:
        """Part of the plan that has run: of its most used line."""
        return max((count / most for count, (_, most) in zip(used, self.lines, strict=True)), default=0.0)

    def epsilon(self, used: Vector) -> float:
        """The epsilon of the lines used so far, by PLD."""
        return _epsilon(self._times(used), self._budget.delta)

    def left(self, used: Vector) -> float:
        """The epsilon of the lines that are not used yet, by PLD."""
        planned = tuple(most for _, most in self.lines)
        return _epsilon(self._times(tuple(map(operator.sub, planned, used))), self._budget.delta)

    def _times(self, counts: Vector) -> Lines:
        return tuple((line, count) for (line, _), count in zip(self.lines, counts, strict=True) if count > 0)

    def _pay(self, leaf: DpEvent, times: int, used: Vector, cost: list[int]) -> None:
        # A line dominated by another paying line is the cheaper one, and goes first; the last one takes what is over.
        able = [i for i, (line, _) in enumerate(self.lines) if dominates(line, leaf)]
        # A new list: one that is sorted in place is empty while its own elements are compared.
        paying = sorted(
            able, key=lambda i: sum(dominates(self.lines[j][0], self.lines[i][0]) for j in able), reverse=True
        )
        for i in paying:
            take = min(times, max(0, self.lines[i][1] - used[i] - cost[i]))
            cost[i] += take
            times -= take
        cost[paying[-1]] += times


@lru_cache(maxsize=256)
def _epsilon(lines: Lines, delta: float) -> float:
    return plan_epsilon(lines, delta) if lines else 0.0


class Rule(Protocol):
    """A composition rule with the account's cap in it.

    Attributes:
        size: length of its cost vectors.
        claim: the accountant behind the account's claim, for the certificate.
    """

    size: int
    claim: str

    def cost(self, event: DpEvent, used: Vector) -> Vector:
        """The cost of the event on top of `used`; EventError when the rule does not take such an event."""

    def admits(self, used: Vector) -> bool:
        """Whether the cap holds when this much is used in total."""

    def share(self, used: Vector) -> float:
        """Part of the cap that is used, for people; above 1 means that it does not hold."""

    def epsilon(self, used: Vector) -> float:
        """The epsilon of this cost, at the account's delta: a diagnostic."""

    def left(self, used: Vector) -> float:
        """The largest epsilon, at the account's delta, that one more release may ask for."""


class SumRule:
    """A rule that adds up the prices of events, and admits while the sum stays within a limit."""

    size = 1
    claim: str

    def __init__(self, budget: Budget, limit: float) -> None:
        self._budget = budget
        self.limit = down(limit)

    def price(self, event: DpEvent) -> float | Fraction:
        """The price of one event."""
        raise NotImplementedError

    def epsilon_of(self, spent: float) -> float:
        """The epsilon of a sum of prices."""
        raise NotImplementedError

    def cost(self, event: DpEvent, used: Vector) -> Vector:
        """The price, rounded up; it does not depend on `used`."""
        return (up(self.price(event)),)

    def admits(self, used: Vector) -> bool:
        """Whether the sum is within the limit."""
        return used[0] <= self.limit

    def share(self, used: Vector) -> float:
        """Part of the limit that is used."""
        return used[0] / self.limit

    def epsilon(self, used: Vector) -> float:
        """The epsilon of the sum."""
        return self.epsilon_of(real(used[0]))

    def left(self, used: Vector) -> float:
        """The epsilon of the rest of the limit."""
        return min(self._budget.epsilon, self.epsilon((max(0, self.limit - used[0]),)))


class GdpRule(SumRule):
    """Sum of 1 / sigma^2, at most mu*^2."""

    claim = "analytic Gaussian (GDP filter)"

    def __init__(self, budget: Budget) -> None:
        mu = mu_of(budget)
        super().__init__(budget, mu * mu * (1 - 2**-52))  # the float product may be rounded up

    def price(self, event: DpEvent) -> Fraction:
        """The mu^2 of the event."""
        return gdp_cost(event)

    def epsilon_of(self, spent: float) -> float:
        """The epsilon of this mu^2."""
        return epsilon_of(math.sqrt(spent), self._budget.delta)


class MetricRule(SumRule):
    """Sum of the per-document epsilons, at most epsilon*."""

    claim = "basic composition of metric local privacy, per document"

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget, budget.epsilon)

    def price(self, event: DpEvent) -> Fraction:
        """Tokens times (epsilon times diameter, and the cost of words that are kept), for the words of one list."""
        protected_by(event)  # refuses parts that protect two lists
        total = Fraction(0)
        for leaf, times in leaves(event):
            if type(leaf) is not MetricLocalDpEvent:
                raise EventError(
                    f"the event is a {type(leaf).__name__}: composition 'metric' takes metric-local events."
                )
            total += exact_epsilon(leaf) * times
        return total

    def epsilon_of(self, spent: float) -> float:
        """The sum itself."""
        return spent


class OneOrderRule(SumRule):
    """Sum of the Renyi cost at one order, at most what the cap allows; ConfigError when it allows nothing."""

    def __init__(self, budget: Budget, order: float) -> None:
        super().__init__(budget, renyi.rdp_cap(order, budget))
        self._order = order
        self.claim = f"Renyi DP at order {order:g} (RDP filter)"

    def price(self, event: DpEvent) -> float:
        """The Renyi cost of the event at the order."""
        return renyi.rdp(event, (self._order,))[0]

    def epsilon_of(self, spent: float) -> float:
        """The epsilon of this Renyi cost; zero when nothing is used."""
        return renyi.epsilon_at(spent, self._order, self._budget.delta) if spent else 0.0


class ZcdpRule(SumRule):
    """Sum of rho, at most rho*."""

    claim = "zero-concentrated DP (zCDP filter)"

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget, gaussian.rho_cap(budget))

    def price(self, event: DpEvent) -> Fraction:
        """The rho of the event."""
        return gaussian.rho(event)

    def epsilon_of(self, spent: float) -> float:
        """The epsilon of this rho."""
        return gaussian.epsilon_of_rho(spent, self._budget.delta)


_RULES: dict[str, Callable[[Budget, dict[str, Any], Lines], Rule]] = {
    "gdp": lambda budget, parameters, lines: GdpRule(budget),
    "zcdp": lambda budget, parameters, lines: ZcdpRule(budget),
    "rdp": lambda budget, parameters, lines: OneOrderRule(budget, float(parameters["order"])),
    "pld": lambda budget, parameters, lines: PlanRule(budget, lines),
    "metric": lambda budget, parameters, lines: MetricRule(budget),
}
COMPOSITIONS = tuple(_RULES)


def rule_for(composition: str, budget: Budget, parameters: dict[str, Any], lines: Lines = ()) -> Rule:
    """The rule of an account; ConfigError when it is unknown, or its order leaves nothing of the cap."""
    if composition not in _RULES:
        raise ConfigError(f"privacy.composition is {composition!r}: use one of {', '.join(COMPOSITIONS)}.")
    return _RULES[composition](budget, parameters, lines)


def parameters_for(
    composition: str, budget: Budget, order: float | None = None, plan: Sequence[DpEvent] = ()
) -> dict[str, Any]:
    """The parameters of a new account's rule: the given RDP order, or the best one for a plan."""
    if composition != "rdp":
        if order is not None:
            raise ConfigError(f"order is {order} and composition is '{composition}': only 'rdp' takes one.")
        return {}
    if order is None and not plan:
        raise ConfigError("composition is 'rdp' and there is no order: give one, e.g. 8, or a plan to choose it from.")
    return {"order": float(order) if order is not None else _order_of(plan, budget)}


def _order_of(plan: Sequence[DpEvent], budget: Budget) -> float:
    order = renyi.best_order(plan, budget.delta)
    try:
        renyi.rdp_cap(order, budget)
    except ConfigError:
        raise ConfigError(
            f"the account's epsilon {budget.epsilon:g} at delta {budget.delta:g} is far less than the plan costs: raise"
            " it, or plan less."
        ) from None
    return order
