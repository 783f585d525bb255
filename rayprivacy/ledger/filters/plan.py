"""Pre-registered plans: the tighter PLD figure is the claim, and only what was planned, or less, is admitted.

Numerical privacy loss distributions compose tightly, but only for events fixed before the first answer: a filter on
them is not valid under full adaptivity. A plan fixes the events. Whatever is then run is paid by a line of the plan
that dominates it (sampled no less often, with no more noise). Order and early stopping may depend on earlier answers:
the losses of the lines are independent given the past, so their sum has the same distribution in any order, and running
less is post-processing of running all.

A cost is a count for each line, so an event finds its line when it is reserved, and what is cancelled goes back there.
"""

import operator
from functools import lru_cache

from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting.events import leaves, validate
from rayprivacy.accounting.plan import dominates, plan_epsilon
from rayprivacy.core.errors import EventError
from rayprivacy.core.units import Budget
from rayprivacy.ledger.filters.grid import Vector

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
