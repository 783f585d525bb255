"""Open an account: its terms, and the plan of a pre-registered one, before the corpus is first touched.

An epsilon is about the unit, the columns that mean it, the words and the policy of its own account. A release of one
account may therefore be a non-private run for another account of the same corpus, which then holds an `exposure` entry:

- for a central account, every charge of an account that is selective or metric-local;
- for any account, every charge of one of its own kind that means another thing: other columns behind the unit, other
  protected words, another policy. What an account did not say is not compared.

There is none where a central account pays for the same rung of the same release, by a charge that has started and costs
there at least as much as what is drawn would: then all that is drawn is paid for in central terms too.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple, TypedDict

from dp_accounting.dp_event import ComposedDpEvent, DpEvent
from sqlalchemy import Connection

from rayprivacy.accounting.accountant import plan_epsilon, plan_lines
from rayprivacy.accounting.events import protected_by, to_json
from rayprivacy.core.errors import BudgetRefusedError, EventError, LedgerError
from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger import accounts
from rayprivacy.ledger.accounts import Account
from rayprivacy.ledger.admission import Balance, Terms, read_balance, read_terms
from rayprivacy.ledger.book import Entry, Tail, is_charged, read
from rayprivacy.ledger.charges import Charge, ChargeState, fold, live, read_rungs
from rayprivacy.ledger.rules import Lines, PlanRule, Rule, Vector, parameters_for, rule_for

_Rung = tuple[str, str, int]


class More(TypedDict, total=False):
    """Terms that most accounts leave out.

    Attributes:
        kind: what the guarantee means; central when left out.
        corpus: label of the corpus, shared by its accounts.
        policy: name of the public policy function of a selective account.
        of: which columns mean the unit, as `user: author`; left out, the first release that says it fixes it.
        protected: of a metric-local account, the digest of the list of words that it protects, empty for all words;
            left out, it is what the plan, or else the first release, protects.
        order: the RDP order of composition 'rdp'.
        threshold_delta: the part of delta that is kept for thresholds, of a composition other than 'pld'.
        plan: events from which the order, and the part for thresholds, are chosen when they are not given; composition
            'pld' registers them.
    """

    kind: AccountKind
    corpus: str
    policy: str
    of: str
    protected: str
    order: float
    threshold_delta: float
    plan: Sequence[DpEvent]


class Plan(NamedTuple):
    """The events that an account of composition 'pld' may ever run, with their epsilon together."""

    lines: Lines
    epsilon: float


def draft(
    name: str, unit: PrivacyUnit, relation: NeighbouringRelation, budget: Budget, composition: str, more: More
) -> Account:
    """The terms of a new account, checked; nothing is written."""
    plan = more.get("plan", ())
    parameters = parameters_for(composition, budget, more.get("order"), plan, more.get("threshold_delta"))
    said = {"policy": more.get("policy"), "of": more.get("of"), "protected": more.get("protected")}
    if composition == "metric" and said["protected"] is None and plan:
        said["protected"] = protected_by(ComposedDpEvent(list(plan)))
    parameters |= {name: value for name, value in said.items() if value is not None}
    account = Account(
        name=name,
        unit=unit,
        relation=relation,
        epsilon=budget.epsilon,
        delta=budget.delta,
        composition=composition,
        kind=more.get("kind", AccountKind.CENTRAL),
        corpus=more.get("corpus", ""),
        parameters=parameters,
    )
    accounts.check_terms(account)
    rule_for(composition, budget, parameters)
    return account


def open_account(tail: Tail, account: Account, plan: Plan | None = None) -> Account:
    """Write a new account, its `create` entry, what its corpus has been exposed to already, and its plan."""
    # The entry's time is the account's: verify compares the two.
    now = datetime.now(UTC).isoformat(timespec="seconds")
    opened = replace(account, created_at=now)
    accounts.insert_account(tail.connection, opened)
    terms = Terms(opened, rule_for(opened.composition, opened.budget, opened.parameters))
    tail.append(
        account=opened.name,
        kind="create",
        detail=json.dumps(opened.terms, sort_keys=True),
        created_at=now,
        balance=Balance.empty(terms.rule.size).text,
    )
    record_earlier_exposures(tail, opened)
    if plan is not None:
        register_plan(tail, terms, plan)
    return opened


def fix_meaning(tail: Tail, name: str, meaning: Mapping[str, str]) -> None:
    """Write what an account protects (`accounts.MEANING`) where it did not say so yet, and its exposures so far."""
    found = accounts.get_account(tail.connection, name)
    account = accounts.with_meaning(found, meaning)
    new = {term: value for term, value in account.meaning.items() if term not in found.meaning}
    if new:
        balance = read_balance(tail, name, read_terms(tail.connection, name).rule).text
        tail.append(account=name, kind="meaning", detail=json.dumps(new, sort_keys=True), balance=balance)
        record_earlier_exposures(tail, account, found)


def first_plan(account: Account, events: Sequence[DpEvent]) -> Plan | None:
    """The plan that is registered in the same transaction that opens the account; only composition 'pld' has one."""
    return price_plan(account, events) if account.composition == "pld" and events else None


def price_plan(account: Account, events: Sequence[DpEvent]) -> Plan:
    """The plan's lines and epsilon; PLD takes seconds, so this is done before the ledger is locked."""
    if account.composition != "pld":
        raise LedgerError(
            f"account '{account.name}' has composition '{account.composition}': only 'pld' accounts take a plan."
        )
    lines = plan_lines(events)
    epsilon = plan_epsilon(lines, account.delta)
    if not epsilon <= account.epsilon:
        raise BudgetRefusedError(
            f"the plan costs epsilon {epsilon:.6g} at delta {account.delta:.3g} and account '{account.name}' has a cap"
            f" of {account.epsilon:.6g}: plan fewer steps, or more noise."
        )
    return Plan(lines, epsilon)


def lacks_plan(connection: Connection, account: Account, events: Sequence[DpEvent]) -> bool:
    """Whether an account must register a plan of these events to pay for them all, and still may."""
    if account.composition != "pld" or not events or is_charged(connection, account.name):
        return False
    rule = read_terms(connection, account.name).rule
    try:
        return not rule.admits(rule.cost(ComposedDpEvent(list(events)), (0,) * rule.size))
    except EventError:  # an event that no line pays for
        return True


def register_plan(tail: Tail, terms: Terms, plan: Plan) -> None:
    """Write the plan into the ledger: the account's first, or another one as long as nothing was reserved under it.

    Privacy losses of a plan compose because its events are fixed before the first answer. Where nothing was ever
    reserved, no noise was drawn and there is no answer on which the choice of another plan could rest: what is fixed
    before the first answer is then the last plan, and its composition is that of an account which was opened with it.
    Whether it is so is read in the transaction that writes the plan; what was reserved and cancelled counts, too.
    """
    if terms.rule.size and is_charged(tail.connection, terms.account.name):
        raise LedgerError(
            f"account '{terms.account.name}' has a plan already, under which something was charged: open another"
            " account for another plan."
        )
    events = [to_json(event) for event, _ in plan.lines]
    detail = {"events": events, "counts": [count for _, count in plan.lines], "epsilon": plan.epsilon}
    tail.append(
        account=terms.account.name,
        kind="plan",
        detail=json.dumps(detail, sort_keys=True),
        balance=Balance.empty(len(plan.lines)).text,
    )


class _Payment(NamedTuple):
    """A charge of a central account, which may pay for what another account charges."""

    terms: Terms
    charge: Charge


def _exposes(charged: Account, exposed: Account) -> bool:
    """Whether a charge of one account is a non-private run for another one of the same corpus."""
    if exposed.kind is AccountKind.CENTRAL and charged.kind is not AccountKind.CENTRAL:
        return True
    return charged.kind is exposed.kind and (
        charged.parameters.get("policy") != exposed.parameters.get("policy")
        or _differ(charged.meaning, exposed.meaning)
    )


def record_exposures(tail: Tail, account: Account, charge: Charge) -> None:
    """Write an exposure into every account of the corpus that a new charge does not protect."""
    group = accounts.group_of(tail.connection, account)
    charged = accounts.get_account(tail.connection, account.name) if group else account  # it may say more by now
    exposed = [other for other in group if _exposes(charged, other)]
    payments = list(_payments(tail.connection, group, charge)) if exposed else []
    for other in exposed:
        if not _paid_for(other, charge, payments):
            _record(tail, other, charged, charge)


def record_earlier_exposures(tail: Tail, account: Account, before: Account | None = None) -> None:
    """The same for charges made before an account was opened, or said more than `before` (None: it was not there)."""
    group = accounts.group_of(tail.connection, account)
    books = {other.name: read(tail.connection, account=other.name) for other in (account, *group)} if group else {}
    for other in group:
        for charged, exposed in ((other, account), (account, other)):
            old = [before if each is account else each for each in (charged, exposed)]
            was = old[0] is not None and old[1] is not None and _exposes(old[0], old[1])
            if _exposes(charged, exposed) and not was:
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
) -> Mapping[_Rung, list[tuple[int, _Payment]]]:
    """By rung, what has ever started to pay for one in the central accounts beside one account, and when."""
    found = defaultdict(list)
    group = accounts.group_of(connection, charged)
    for other in (account for account in group if account.kind is AccountKind.CENTRAL):
        terms, book = read_terms(connection, other.name), books[other.name]
        starts = {entry.charge: entry.seq for entry in book if entry.kind == "start"}
        for charge in fold(book):
            if charge.id in starts:
                found[_rung(charge)].append((starts[charge.id], _Payment(terms, charge)))
    return found


def _payments(connection: Connection, group: Sequence[Account], charge: Charge) -> Iterator[_Payment]:
    for other in (account for account in group if account.kind is AccountKind.CENTRAL):
        rungs = read_rungs(connection, other.name, charge.release_id, charge.input_digest, charge.rung)
        found = live(rungs, charge.rung)
        if found is not None and found.state in (ChargeState.STARTED, ChargeState.COMMITTED):
            yield _Payment(read_terms(connection, other.name), found)


def _paid_for(exposed: Account, charge: Charge, payments: Sequence[_Payment]) -> bool:
    """Whether what is drawn under a charge is paid for in central terms, and in units of what the account protects."""
    return exposed.kind is not AccountKind.METRIC_LOCAL and any(
        not _differ(payment.terms.account.meaning, exposed.meaning)
        and _covers(payment.terms.rule, payment.charge.cost, charge.event)
        for payment in payments
    )


def _covers(rule: Rule, paid: Vector, event: DpEvent) -> bool:
    """Whether a charge that took so much took at least what the event would cost in its place."""
    planned = rule.planned if isinstance(rule, PlanRule) else paid
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
        events=json.dumps({"kind": "non-private"}),
        detail=json.dumps({"account": account.name, "kind": account.kind.value}, sort_keys=True),
        balance=read_balance(tail, exposed.name, rule).text,
    )
