"""The account that pays for a run: opened, or refused, before any work."""

import math
from collections.abc import Sequence

from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from rayprivacy.accounting.metric import MetricLocalDpEvent, document_epsilon
from rayprivacy.core.units import AccountKind
from rayprivacy.ledger.opening import More
from rayprivacy.ledger.store import Ledger
from rayprivacy.runs.plan import Plan
from rayprivacy.runs.recipe import Recipe


def open_account(recipe: Recipe, plan: Plan, expected_head: str | None = None) -> Ledger:
    """Open the ledger and refuse what the account cannot pay.

    Args:
        recipe: names the ledger and the account, which is opened with the recipe's budget if it is not there.
        plan: everything the run will charge, and what that protects.
        expected_head: a head of the ledger seen earlier.

    Raises:
        BudgetRefusedError: less is left than this run asks for, and it has not been charged before.
        LedgerError: the account protects another unit, relation, kind or composition, or the ledger lacks the head.
    """
    privacy, protection = recipe.privacy, plan.protection
    ledger = privacy.open_ledger(expected_head)
    terms = More(corpus=privacy.corpus, plan=plan.events, kind=protection.kind)
    if plan.policy:
        terms["policy"] = plan.policy
    ledger.ensure_account(
        privacy.account, protection.unit, protection.relation, privacy.budget, privacy.composition, **terms
    )
    if not ledger.charges_of(privacy.account, recipe.release_id):
        ledger.check(privacy.account, _all_of(plan), protection)
    return ledger


def whole(events: Sequence[DpEvent], kind: AccountKind) -> DpEvent:
    """Several events as one, for an account of this kind; epsilons of metric-local ones add up, document by document.

    Args:
        events: at least one.
        kind: of the account.
    """
    if len(events) == 1:
        return events[0]
    if kind is not AccountKind.METRIC_LOCAL:
        return ComposedDpEvent(list(events))
    total = math.fsum(document_epsilon(event) for event in events)
    return MetricLocalDpEvent(math.nextafter(total, math.inf), 1.0, 1)


def _all_of(plan: Plan) -> DpEvent:
    kind = plan.protection.kind
    return whole(plan.charges if kind is AccountKind.METRIC_LOCAL else plan.events, kind)
