"""Exposures: what one account of a corpus tells another one that it does not protect.

An epsilon is about the unit, the columns that mean it, the words and the policy of its own account. A release of one
account may therefore be a non-private run for another account of the same corpus, which then holds an `exposure` entry:

- for a central account, every charge of an account that is selective or metric-local;
- for any account, every charge of one of its own kind that means another thing: other columns behind the unit, other
  protected words, another policy. What an account did not say is not compared.

There is none where a central account pays for the same rung of the same release: its charge has started, from which
there is no way back, and costs there at least as much as what is drawn would. Then all that is drawn is paid for in
central terms too.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dp_accounting.dp_event import DpEvent
from sqlalchemy import Connection

from rayprivacy.core.errors import EventError
from rayprivacy.core.units import AccountKind
from rayprivacy.ledger.accounts import Account, central, get_account, group_of
from rayprivacy.ledger.admission import Terms, read_terms
from rayprivacy.ledger.balances import read_balance
from rayprivacy.ledger.chain import Entry, Tail, read
from rayprivacy.ledger.charges import Charge, ChargeState, fold, live, read_rungs
from rayprivacy.ledger.filters.grid import Vector
from rayprivacy.ledger.filters.plan import PlanRule
from rayprivacy.ledger.filters.rule import Rule

_Rung = tuple[str, str, int]
NON_PRIVATE = json.dumps({"kind": "non-private"})


class Payment(NamedTuple):
    """A charge of a central account, which may pay for what another account charges."""

    terms: Terms
    charge: Charge


def exposes(charged: Account, exposed: Account) -> bool:
    """Whether a charge of one account is a non-private run for another one of the same corpus."""
    if exposed.kind is AccountKind.CENTRAL and charged.kind is not AccountKind.CENTRAL:
        return True
    return charged.kind is exposed.kind and (
        charged.parameters.get("policy") != exposed.parameters.get("policy")
        or _differ(charged.meaning, exposed.meaning)
    )


def record_exposures(tail: Tail, account: Account, charge: Charge) -> None:
    """Write an exposure into every account of the corpus that a new charge does not protect."""
    group = group_of(tail.connection, account)
    charged = get_account(tail.connection, account.name) if group else account  # it may have said more meanwhile
    exposed = [other for other in group if exposes(charged, other)]
    payments = list(_payments(tail.connection, group, charge)) if exposed else []
    for other in exposed:
        if not _paid_for(other, charge, payments):
            _record(tail, other, charged, charge)


def record_earlier_exposures(tail: Tail, account: Account, before: Account | None = None) -> None:
    """The same for charges that were there before an account was opened, or before it said what it protects.

    `before` is the account as it was until now; None where it was not there.
    """
    group = group_of(tail.connection, account)
    books = {other.name: read(tail.connection, account=other.name) for other in (account, *group)} if group else {}
    for other in group:
        for charged, exposed in ((other, account), (account, other)):
            old = [before if each is account else each for each in (charged, exposed)]
            was = old[0] is not None and old[1] is not None and exposes(old[0], old[1])
            if exposes(charged, exposed) and not was:
                _record_book(tail, charged, exposed, books)


def _record_book(tail: Tail, charged: Account, exposed: Account, books: Mapping[str, Sequence[Entry]]) -> None:
    reserved = {entry.charge: entry.seq for entry in books[charged.name] if entry.kind == "reserve"}
    started = _started(tail.connection, charged, books)
    for charge in fold(books[charged.name]):
        payments = [each for seq, each in started[_rung(charge)] if seq < reserved[charge.id]]
        if charge.is_live and not _paid_for(exposed, charge, payments):
            _record(tail, exposed, charged, charge)


def _started(
    connection: Connection, charged: Account, books: Mapping[str, Sequence[Entry]]
) -> Mapping[_Rung, list[tuple[int, Payment]]]:
    """By rung, what has ever started to pay for one in the central accounts beside one account, and when."""
    found = defaultdict(list)
    for other in central(group_of(connection, charged)):
        terms, book = read_terms(connection, other.name), books[other.name]
        starts = {entry.charge: entry.seq for entry in book if entry.kind == "start"}
        for charge in fold(book):
            if charge.id in starts:
                found[_rung(charge)].append((starts[charge.id], Payment(terms, charge)))
    return found


def _payments(connection: Connection, group: Sequence[Account], charge: Charge) -> Iterator[Payment]:
    for other in central(group):
        rungs = read_rungs(connection, other.name, charge.release_id, charge.input_digest, charge.rung)
        found = live(rungs, charge.rung)
        if found is not None and found.state in (ChargeState.STARTED, ChargeState.COMMITTED):
            yield Payment(read_terms(connection, other.name), found)


def _paid_for(exposed: Account, charge: Charge, payments: Sequence[Payment]) -> bool:
    """Whether what is drawn under a charge is paid for in central terms, and in units of what the account protects."""
    return exposed.kind is not AccountKind.METRIC_LOCAL and any(
        not _differ(payment.terms.account.meaning, exposed.meaning)
        and _covers(payment.terms.rule, payment.charge.cost, charge.event)
        for payment in payments
    )


def _covers(rule: Rule, paid: Vector, event: DpEvent) -> bool:
    """Whether a charge that took so much took at least what the event would cost in its place."""
    planned = tuple(most for _, most in rule.lines) if isinstance(rule, PlanRule) else paid
    others = tuple(most - part for most, part in zip(planned, paid, strict=True))  # of a plan: the lines left to it
    try:
        return all(part <= have for part, have in zip(rule.cost(event, others), paid, strict=True))
    except EventError:  # of a kind that the account does not take
        return False


def _differ(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    return any(one[name] != other[name] for name in one.keys() & other.keys())


def _rung(each: Charge) -> _Rung:
    return each.release_id, each.input_digest, each.rung


def _record(tail: Tail, exposed: Account, account: Account, charge: Charge) -> None:
    """Write one `exposure` entry."""
    rule = read_terms(tail.connection, exposed.name).rule
    tail.append(
        account=exposed.name,
        kind="exposure",
        release_id=charge.release_id,
        input_digest=charge.input_digest,
        events=NON_PRIVATE,
        detail=json.dumps({"account": account.name, "kind": account.kind.value}, sort_keys=True),
        balance=read_balance(tail, exposed.name, rule).text,
    )
