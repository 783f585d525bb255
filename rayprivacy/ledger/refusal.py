"""A refusal: decided while the book is locked, put into words when it is free again.

The words name epsilons. Those of a plan may take long by PLD, and no other writer should wait for them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from rayprivacy.core.errors import BudgetRefusedError, EventError
from rayprivacy.ledger.accounts import Account
from rayprivacy.ledger.filters.grid import Vector
from rayprivacy.ledger.filters.rule import Rule


class DoesNotFitError(Exception):
    """A cost does not fit on top of what is used; `explaining` keeps it from leaving the ledger."""

    def __init__(self, account: Account, rule: Rule, used: Vector, cost: Vector) -> None:
        super().__init__(account.name)
        self._account, self._rule, self._used, self._cost = account, rule, used, cost

    @property
    def sentence(self) -> str:
        """What was asked and what is left, as epsilons where they can be computed; may take long."""
        name, cap, delta = self._account.name, f"{self._account.epsilon:.6g}", f"{self._account.delta:.3g}"
        try:
            asked, left = self._rule.epsilon(self._cost), self._rule.left(self._used)
        except (ArithmeticError, EventError):
            return (
                f"the release asks for more than account '{name}' has left of epsilon {cap} at delta {delta}, and for"
                " too much to have an epsilon by the account's rule: ask for less, or stop here."
            )
        return (
            f"the release asks for epsilon {asked:.6g} and account '{name}' has {left:.6g} of {cap} left at delta"
            f" {delta}: lower privacy.epsilon to that, or stop here."
        )


@contextmanager
def explaining() -> Iterator[None]:
    """Around a transaction: whatever does not fit inside is explained after the transaction has ended.

    Raises:
        BudgetRefusedError: it did not fit; the message names the requested and the remaining epsilon.
    """
    try:
        yield
    except DoesNotFitError as refusal:
        raise BudgetRefusedError(refusal.sentence) from None
