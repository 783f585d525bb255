"""What an account's charges take from it, by state, carried along in every entry like the balance in a bank statement.

With it, admitting a charge reads one row instead of all of them. It is derived, hashed with the entry, and computed
again from the reserves by `verify`.
"""

import json
import operator
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from rayprivacy.ledger.chain import Tail, last_balance
from rayprivacy.ledger.charges import Charge, ChargeState
from rayprivacy.ledger.filters.grid import Vector, total
from rayprivacy.ledger.filters.rule import Rule
from rayprivacy.ledger.rows import decoding


@dataclass(frozen=True)
class Balance:
    """Totals of an account's charges, by state, in the integers of its rule."""

    reserved: Vector
    started: Vector
    committed: Vector

    @classmethod
    def empty(cls, size: int) -> "Balance":
        """Nothing charged yet."""
        return cls((0,) * size, (0,) * size, (0,) * size)

    @classmethod
    def of(cls, charges: list[Charge], rule: Rule) -> "Balance":
        """The balance of a list of charges."""
        return cls(*(total((each.cost for each in charges if each.state is state), rule.size) for state in _COUNTED))

    @property
    def used(self) -> Vector:
        """What counts against the cap: all of it."""
        return total((self.reserved, self.started, self.committed), len(self.reserved))

    def moved(self, cost: Vector, before: ChargeState | None, after: ChargeState) -> "Balance":
        """The balance after a charge went from one state to another; None before it is reserved."""
        taken = self._changed(before, tuple(-part for part in cost)) if before else self
        return taken._changed(after, cost)

    def _changed(self, state: ChargeState, by: Vector) -> "Balance":
        if state not in _COUNTED:
            return self
        return replace(self, **{state.value: total((getattr(self, state.value), by), len(by))})

    @property
    def text(self) -> str:
        """The balance as JSON."""
        return json.dumps(vars(self), sort_keys=True)


_MOST = 2**1000  # more than any cap, and still a float
_COUNTED = (ChargeState.RESERVED, ChargeState.STARTED, ChargeState.COMMITTED)


def read_balance(source: Connection | Tail, account: str, rule: Rule) -> Balance:
    """The balance after the account's last entry."""
    text = source.balance(account) if isinstance(source, Tail) else last_balance(source, account)
    with decoding(f"the balance of account '{account}'"):
        vectors = json.loads(text)
        reserved, started, committed = (tuple(map(operator.index, vectors[state.value])) for state in _COUNTED)
        if {len(reserved), len(started), len(committed)} != {rule.size}:
            raise ValueError
        if not all(0 <= part < _MOST for part in (*reserved, *started, *committed)):
            raise ValueError
    return Balance(reserved, started, committed)
