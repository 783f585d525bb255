"""The account that pays for a run: opened, or refused, before any work."""

from collections.abc import Sequence

from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from rayprivacy.accounting.events import leaves
from rayprivacy.ledger.api import LedgerApi
from rayprivacy.ledger.opening import More
from rayprivacy.ledger.store import Ledger
from rayprivacy.runs.plan import Plan, SecondAccount
from rayprivacy.runs.recipe import Recipe


def open_account(recipe: Recipe, plan: Plan, expected_head: str | None = None) -> Ledger:
    """Open the ledger and refuse what the account, or the one that pays besides, cannot pay.

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
        ledger.check(privacy.account, whole(plan.events), protection)
    if plan.second is not None:
        _open_second(ledger, recipe, plan.second)
    return ledger


def _open_second(ledger: Ledger, recipe: Recipe, second: SecondAccount) -> None:
    privacy, protection = recipe.privacy, second.protection
    terms = More(corpus=privacy.corpus, plan=[second.event], kind=protection.kind)
    ledger.ensure_account(
        second.account, protection.unit, protection.relation, second.budget, privacy.composition, **terms
    )
    if not ledger.charges_of(second.account, recipe.release_id):
        ledger.check(second.account, second.event, protection)


def charged_besides(
    ledger: LedgerApi, account: str, release_id: str, event: DpEvent, planned: Sequence[DpEvent]
) -> str:
    """A sentence for people where a release has more charges of a kind than a run of it makes; empty where it has not.

    Args:
        ledger: the book.
        account: the account that pays.
        release_id: the release.
        event: of the charge that was made now.
        planned: of all charges that one run makes.
    """
    charges = [charge.event for charge in ledger.charges_of(account, release_id) if charge.is_live]
    found, most = (sum(_alike(each, event) for each in events) for events in (charges, planned))
    if found <= max(most, 1):
        return ""
    return (
        f"account '{account}' has {found} charges like this one for the release, and a run makes {max(most, 1)}: it was"
        " charged before for another corpus or question, or by a version that named charges otherwise, and all count."
    )


def _alike(one: DpEvent, other: DpEvent) -> bool:
    """Whether two events are of one mechanism, however often it ran."""
    return [leaf for leaf, _ in leaves(one)] == [leaf for leaf, _ in leaves(other)]


def whole(events: Sequence[DpEvent]) -> DpEvent:
    """Several events as one; at least one is given."""
    return events[0] if len(events) == 1 else ComposedDpEvent(list(events))
