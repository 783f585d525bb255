"""Open an account: its terms, and the plan of a pre-registered one, before the corpus is first touched."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypedDict, Unpack

from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from rayprivacy.accounting.events import protected_by, to_json
from rayprivacy.accounting.plan import plan_epsilon, plan_lines
from rayprivacy.core.errors import BudgetRefusedError, LedgerError
from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.accounts import Account, check_terms, get_account, insert_account, with_meaning
from rayprivacy.ledger.admission import Terms, read_terms
from rayprivacy.ledger.balances import Balance, read_balance
from rayprivacy.ledger.chain import Tail
from rayprivacy.ledger.exposures import record_earlier_exposures
from rayprivacy.ledger.filters.choose import parameters_for, rule_for
from rayprivacy.ledger.filters.plan import Lines


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
        plan: events from which the order is chosen when it is not given; composition 'pld' registers them.
    """

    kind: AccountKind
    corpus: str
    policy: str
    of: str
    protected: str
    order: float
    plan: Sequence[DpEvent]


@dataclass(frozen=True)
class Plan:
    """The events that an account of composition 'pld' may ever run, with their epsilon together."""

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
    """The terms of a new account, checked; nothing is written."""
    plan = more.get("plan", ())
    parameters = parameters_for(composition, budget, more.get("order"), plan)
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
    check_terms(account)
    rule_for(composition, budget, parameters)
    return account


def open_account(tail: Tail, account: Account, plan: Plan | None = None) -> Account:
    """Write a new account, its `create` entry, what its corpus has been exposed to already, and its plan."""
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
    record_earlier_exposures(tail, opened)
    if plan is not None:
        register_plan(tail, terms, plan)
    return opened


def fix_meaning(tail: Tail, name: str, meaning: Mapping[str, str]) -> None:
    """Write what an account protects where it did not say so yet, and what its corpus has been exposed to for all that.

    `meaning` holds values of `accounts.MEANING`; it is refused where the account says something else, or cannot say it.
    """
    found = get_account(tail.connection, name)
    account = with_meaning(found, meaning)
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


def register_plan(tail: Tail, terms: Terms, plan: Plan) -> None:
    """Write the plan into the ledger, once."""
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
