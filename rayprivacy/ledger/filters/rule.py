"""What an admission rule offers to the ledger."""

from typing import Protocol

from dp_accounting.dp_event import DpEvent

from rayprivacy.ledger.filters.grid import Vector


class Rule(Protocol):
    """A composition rule with the account's cap in it.

    Attributes:
        size: length of its cost vectors.
        claim: the accountant behind the account's claim, for the certificate.
    """

    size: int
    claim: str

    def cost(self, event: DpEvent, used: Vector) -> Vector:
        """What the event takes, on top of what is used.

        Raises:
            EventError: the rule does not take such an event.
        """

    def admits(self, used: Vector) -> bool:
        """Whether the cap holds when this much is used in total."""

    def share(self, used: Vector) -> float:
        """Part of the cap that is used, for people; above 1 means that it does not hold."""

    def epsilon(self, used: Vector) -> float:
        """The epsilon of what is used, at the account's delta: a diagnostic."""

    def left(self, used: Vector) -> float:
        """The largest epsilon, at the account's delta, that one more release may ask for."""
