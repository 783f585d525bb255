"""What a write transaction does to an account: admit a charge or refuse it, move it on, and keep the balance.

A refusal is decided inside the transaction and put into words after it. The words name epsilons. Those of a plan may
take long by PLD, and no other writer should wait for them.

What an account's charges take from it, by state, carried along in every entry like the balance in a bank statement.

With it, admitting a charge reads one row instead of all of them. It is derived, hashed with the entry, and computed
again from the reserves by `verify`.
"""

import json
import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dp_accounting.dp_event import DpEvent
from sqlalchemy import Connection

from rayprivacy.accounting.events import from_json
from rayprivacy.core.errors import BudgetRefusedError, EventError, LedgerError
from rayprivacy.ledger.accounts import Account, get_account
from rayprivacy.ledger.book import Tail, decoding, last_balance, read
from rayprivacy.ledger.charges import STATE_AFTER, Charge, ChargeState, advance
from rayprivacy.ledger.rules import Lines, Rule, Vector, rule_for, total


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


class Terms(NamedTuple):
    """An account and its admission rule."""

    account: Account
    rule: Rule


def read_terms(connection: Connection, name: str) -> Terms:
    """The account of this name, with its rule; LedgerError when its row is not what its `create` entry fixed."""
    account = get_account(connection, name)
    details = {entry.kind: entry.detail for entry in read(connection, account=name, release_id="")}
    with decoding(f"the create entry of account '{name}'"):
        fixed = json.loads(details.get("create", ""))
    if fixed != account.terms:  # a row can be replaced past the triggers; the hash-chained entry cannot
        raise LedgerError(
            f"the row of account '{name}' of the ledger differs from its create entry: the file was altered, so"
            " restore the newest copy of it."
        )
    with decoding(f"the row or the plan of account '{name}'"):
        lines = _lines(details["plan"]) if account.composition == "pld" and "plan" in details else ()
        return Terms(account, rule_for(account.composition, account.budget, account.parameters, lines))


def _lines(plan: str) -> Lines:
    stated = json.loads(plan)
    counts = map(operator.index, stated["counts"])
    return tuple((from_json(event), count) for event, count in zip(stated["events"], counts, strict=True))


def admit(terms: Terms, used: Vector, cost: Vector) -> None:
    """Do nothing when the cost fits on top of what is used; callers explain a DoesNotFitError after the transaction."""
    if not terms.rule.admits(total((used, cost), terms.rule.size)):
        raise DoesNotFitError(*terms, used, cost)


def record(
    tail: Tail, terms: Terms, identity: str, release_id: str, input_digest: str, rung: int, event: DpEvent, text: str
) -> Charge:
    """Admit a new charge and write its `reserve` entry; DoesNotFitError when it does not fit."""
    account, rule = terms
    balance = read_balance(tail, account.name, rule)
    cost = rule.cost(event, balance.used)
    admit(terms, balance.used, cost)
    entry = tail.append(
        account=account.name,
        kind="reserve",
        release_id=release_id,
        input_digest=input_digest,
        charge=identity,
        rung=rung,
        events=text,
        cost=json.dumps(cost),
        balance=balance.moved(cost, None, ChargeState.RESERVED).text,
    )
    return advance(None, entry)


def record_move(tail: Tail, terms: Terms, charge: Charge, kind: str, detail: Mapping[str, Any] | None = None) -> Charge:
    """Write the entry that moves a charge on, and the balance after it."""
    account, rule = terms
    balance = read_balance(tail, account.name, rule)
    when = {"created_at": charge.shown_time} if charge.shown_time else {}
    entry = tail.append(
        **when,
        account=account.name,
        kind=kind,
        release_id=charge.release_id,
        input_digest=charge.input_digest,
        charge=charge.id,
        rung=charge.rung,
        detail=json.dumps(detail, sort_keys=True) if detail else "",
        balance=balance.moved(charge.cost, charge.state, STATE_AFTER[kind]).text,
    )
    return advance(charge, entry)


class DoesNotFitError(Exception):
    """A cost does not fit on top of what is used; `explaining` keeps it from leaving the ledger."""

    def __init__(self, account: Account, rule: Rule, used: Vector, cost: Vector) -> None:
        super().__init__(account.name)
        self._account = account
        self._rule = rule
        self._used = used
        self._cost = cost

    @property
    def sentence(self) -> str:
        """The epsilon that was asked and the one that is left, where they can be computed; may take long."""
        name, cap, delta = self._account.name, f"{self._account.epsilon:.6g}", f"{self._account.delta:.3g}"
        try:
            asked = self._rule.epsilon(self._cost)
            left = self._rule.left(self._used)
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
    """Around a transaction: a charge that does not fit is explained, with epsilons, after the transaction has ended."""
    try:
        yield
    except DoesNotFitError as refusal:
        raise BudgetRefusedError(refusal.sentence) from None
