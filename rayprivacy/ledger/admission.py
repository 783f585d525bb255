"""What a write transaction does to an account: admit a charge or refuse it, move it on, and keep the balance.

The balance is what an account's charges take from it, by state, carried along in every entry as in a bank statement: so
admitting a charge reads one row instead of all of them. It is derived, hashed with the entry, and computed again from
the reserves by `verify`.

A refusal is decided inside the transaction and put into words after it. The words name epsilons, those of a plan may
take long by PLD, and no other writer should wait for them.
"""

import json
import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from dp_accounting.dp_event import DpEvent
from sqlalchemy import Connection

from rayprivacy.accounting.events import from_json
from rayprivacy.core.errors import BudgetRefusedError, EventError, LedgerError
from rayprivacy.ledger.accounts import Account, get_account
from rayprivacy.ledger.book import Tail, decoding, last_balance, read
from rayprivacy.ledger.charges import STATE_AFTER, Charge, ChargeState, advance
from rayprivacy.ledger.rules import Rule, Vector, rule_for, total


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
        moved = vars(self).copy()
        for state, by in ((before, tuple(-part for part in cost)), (after, cost)):
            if state in _COUNTED:
                moved[state] = total((moved[state], by), len(by))
        return Balance(**moved)

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
        sizes = {len(reserved), len(started), len(committed)}
        if sizes != {rule.size} or not all(0 <= part < _MOST for part in (*reserved, *started, *committed)):
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
        planned = account.composition == "pld" and "plan" in details
        plan = json.loads(details["plan"]) if planned else {"events": (), "counts": ()}
        lines = tuple(zip(map(from_json, plan["events"]), map(operator.index, plan["counts"]), strict=True))
        return Terms(account, rule_for(account.composition, account.budget, account.parameters, lines))


def admit(terms: Terms, used: Vector, cost: Vector) -> None:
    """Do nothing when the cost fits on top of what is used; to be called inside `explaining`."""
    if not terms.rule.admits(total((used, cost), terms.rule.size)):
        raise _DoesNotFitError(terms, used, cost)


def record(
    tail: Tail, terms: Terms, identity: str, release_id: str, input_digest: str, rung: int, event: DpEvent, text: str
) -> Charge:
    """Admit a new charge and write its `reserve` entry; to be called inside `explaining`."""
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


def record_move(tail: Tail, terms: Terms, charge: Charge, kind: str, detail: Mapping[str, object]) -> Charge:
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


class _DoesNotFitError(Exception):
    """Terms, what is used, and a cost that does not fit on top of it; `explaining` keeps it from leaving the ledger."""


@contextmanager
def explaining() -> Iterator[None]:
    """Around a transaction: a charge that does not fit is explained, with epsilons, after the transaction has ended."""
    try:
        yield
    except _DoesNotFitError as refusal:
        raise BudgetRefusedError(_sentence(*refusal.args)) from None


def _sentence(terms: Terms, used: Vector, cost: Vector) -> str:
    """The epsilon that was asked and the one that is left, where they can be computed; may take long."""
    account, rule = terms
    cap, delta = f"{account.epsilon:.6g}", f"{account.delta:.3g}"
    (wanted, kept), (taken, _) = rule.thresholds(cost), rule.thresholds(used)
    if wanted + taken > kept:
        return (
            f"the release asks for delta {float(wanted):.6g} for its threshold, and account '{account.name}' has"
            f" {float(kept - taken):.6g} of {float(kept):.6g} left for thresholds: ask for less, or stop here."
        )
    try:
        asked, left = rule.epsilon(cost), rule.left(used)
    except (ArithmeticError, EventError):
        return (
            f"the release asks for more than account '{account.name}' has left of epsilon {cap} at delta {delta}, and"
            " for too much to have an epsilon by the account's rule: ask for less, or stop here."
        )
    return (
        f"the release asks for epsilon {asked:.6g} and account '{account.name}' has {left:.6g} of {cap} left at delta"
        f" {delta}: lower privacy.epsilon to that, or stop here."
    )
