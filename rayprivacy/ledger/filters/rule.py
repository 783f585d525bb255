"""What an admission rule offers to the ledger, and the form of every rule that adds up one number per charge."""

from fractions import Fraction
from typing import Protocol

from dp_accounting.dp_event import DpEvent

from rayprivacy.core.units import Budget
from rayprivacy.ledger.filters.grid import Vector, down, real, up


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
