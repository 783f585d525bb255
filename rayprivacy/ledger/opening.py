"""Open an account: its terms, and the plan of a pre-registered one, before the corpus is first touched."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypedDict, Unpack

from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting.events import to_json
from rayprivacy.accounting.plan import plan_epsilon, plan_lines
from rayprivacy.core.errors import BudgetRefusedError, LedgerError
from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.accounts import Account, central, check_terms, group_of, insert_account
from rayprivacy.ledger.admission import Terms, record_exposure
from rayprivacy.ledger.balances import Balance
from rayprivacy.ledger.chain import Entry, Tail, read
from rayprivacy.ledger.charges import fold
from rayprivacy.ledger.filters.choose import parameters_for, rule_for
from rayprivacy.ledger.filters.plan import Lines


class More(TypedDict, total=False):
    """Terms that most accounts leave out.

    Attributes:
        kind: what the guarantee means; central when left out.
        corpus: label of the corpus, shared by its accounts.
        policy: name of the public policy function of a selective account.
        order: the RDP order of composition 'rdp'.
        plan: events from which the order is chosen when it is not given; composition 'pld' registers them.
    """

    kind: AccountKind
    corpus: str
    policy: str
    order: float
    plan: Sequence[DpEvent]


@dataclass(frozen=True)
class Plan:
    """A plan with its price."""

    lines: Lines
    epsilon: float


def draft(
    name: str,
    unit: PrivacyUnit,
    relation: NeighbouringRelation,
    budget: Budget,
    composition: str,
    **more: Unpack[More],
) -> Account:
    """The terms of a new account, checked; nothing is written.

    Raises:
        ConfigError: the composition rule is unknown, or kind and parameters do not go with it.
        LedgerError: a name is empty or too long.
    """
    parameters = parameters_for(composition, budget, more.get("order"), more.get("plan", ()))
    parameters |= {"policy": more["policy"]} if "policy" in more else {}
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
    check_terms(account)
    rule_for(composition, budget, parameters)
    return account


def open_account(tail: Tail, account: Account, plan: Plan | None = None) -> Account:
    """Write a new account, its `create` entry, what its corpus has been exposed to already, and its plan.

    Raises:
        LedgerError: the name is taken.
    """
    # The entry's time is the account's: verify compares the two.
    now = datetime.now(UTC).isoformat(timespec="seconds")
    opened = replace(account, created_at=now)
    insert_account(tail.connection, opened)
    terms = Terms(opened, rule_for(opened.composition, opened.budget, opened.parameters))
    tail.append(
        account=opened.name,
        kind="create",
        detail=json.dumps(opened.terms, sort_keys=True),
        created_at=now,
        balance=Balance.empty(terms.rule.size).text,
    )
    if opened.kind is AccountKind.CENTRAL:
        _record_earlier_exposures(tail, terms)
    if plan is not None:
        register_plan(tail, terms, plan)
    return opened


def first_plan(account: Account, events: Sequence[DpEvent]) -> Plan | None:
    """The plan that is registered in the same transaction that opens the account; only composition 'pld' has one.

    Raises:
        BudgetRefusedError: as `price_plan`.
    """
    return price_plan(account, events) if account.composition == "pld" and events else None


def price_plan(account: Account, events: Sequence[DpEvent]) -> Plan:
    """The plan's lines and epsilon; PLD takes seconds, so this is done before the ledger is locked.

    Raises:
        LedgerError: the account does not take plans.
        BudgetRefusedError: the plan costs more than the account's cap.
    """
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


def register_plan(tail: Tail, terms: Terms, plan: Plan) -> None:
    """Write the plan into the ledger.

    Raises:
        LedgerError: the account has a plan already.
    """
    if terms.rule.size:
        raise LedgerError(f"account '{terms.account.name}' has a plan already: open another account for another plan.")
    events = [to_json(event) for event, _ in plan.lines]
    detail = {"events": events, "counts": [count for _, count in plan.lines], "epsilon": plan.epsilon}
    tail.append(
        account=terms.account.name,
        kind="plan",
        detail=json.dumps(detail, sort_keys=True),
        balance=Balance.empty(len(plan.lines)).text,
    )


def _record_earlier_exposures(tail: Tail, terms: Terms) -> None:
    group = group_of(tail.connection, terms.account)
    books = {other.name: list(read(tail.connection, other.name)) for other in group}
    starts = [entry for other in central(group) for entry in books[other.name] if entry.kind == "start"]
    paid = {_rung(entry): entry.seq for entry in sorted(starts, key=lambda entry: -entry.seq)}  # the first of each
    for other in group:
        if other.kind is not AccountKind.CENTRAL:
            reserved = {entry.charge: entry for entry in books[other.name] if entry.kind == "reserve"}
            for charge in fold(books[other.name]):
                entry = reserved[charge.id]
                if charge.is_live and not paid.get(_rung(entry), entry.seq) < entry.seq:  # see `record_exposures`
                    record_exposure(tail, terms, other, charge)


def _rung(entry: Entry) -> tuple[str, str, int]:
    return entry.release_id, entry.input_digest, entry.rung
