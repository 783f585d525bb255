"""The account that pays for a run: opened, or refused, before any work."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from rayprivacy.accounting.events import leaves
from rayprivacy.core.units import Budget, Protection
from rayprivacy.ledger.opening import More
from rayprivacy.ledger.store import Ledger, LedgerApi
from rayprivacy.runs.directory import Run, stored_recipe
from rayprivacy.runs.meaning import meaning_of
from rayprivacy.runs.plan import Plan
from rayprivacy.runs.recipe import Recipe


def open_account(recipe: Recipe, plan: Plan, expected_head: str | None = None) -> Ledger:
    """Open the ledger, if it has `expected_head`, and the accounts; refuse what either of them cannot pay."""
    privacy, second, terms = recipe.privacy, plan.second, terms_of(recipe, plan)
    ledger = privacy.open_ledger(expected_head)
    own = recipe.release_id, privacy.composition
    more = More(**terms, plan=plan.events)
    settle_account(ledger, privacy.account, *own, privacy.budget, plan.protection, more)
    if second is not None:
        more = More(corpus=terms["corpus"], of=terms["of"], plan=[second.event], kind=second.protection.kind)
        settle_account(ledger, second.account, *own, second.budget, second.protection, more)
    return ledger


def was_charged(run: Run[Any]) -> bool:
    """Whether a run has begun, and its release was charged."""
    if stored_recipe(run.root) is None:
        return False
    name = run.recipe.privacy.account
    with closing(run.recipe.privacy.open_ledger(run.ledger_head())) as ledger:
        there = any(account.name == name for account in ledger.accounts())
        return there and bool(ledger.charges_of(name, run.recipe.release_id))


def terms_of(recipe: Recipe, plan: Plan) -> More:
    """What an account of a recipe is about, beside unit and relation: the same for a run and for a search."""
    terms = More(corpus=recipe.privacy.corpus, kind=plan.protection.kind, of=meaning_of(recipe, plan))
    if plan.policy:
        terms["policy"] = plan.policy
    return terms


def settle_account(
    ledger: Ledger, name: str, release_id: str, composition: str, budget: Budget, protection: Protection, terms: More
) -> None:
    """Open one account or find it, see that it can pay, and only then let it say what it protects.

    Nothing more is asked for where the release was charged before. `terms` has `plan`, all that the release charges,
    and `of`, what the account is about.
    """
    ledger.ensure_account(name, protection.unit, protection.relation, budget, composition, **terms)
    if not ledger.charges_of(name, release_id):
        ledger.check(name, whole(terms["plan"]), protection)
    ledger.fix_meaning(name, terms["of"])


def charged_besides(
    ledger: LedgerApi, account: str, release_id: str, event: DpEvent, planned: Sequence[DpEvent]
) -> str:
    """A sentence where a release has more charges like `event` than the `planned` ones of a run; empty otherwise."""
    charges = [charge.event for charge in ledger.charges_of(account, release_id) if charge.is_live]
    kind = [leaf for leaf, _ in leaves(event)]  # one mechanism, however often it ran
    found, most = (sum([leaf for leaf, _ in leaves(each)] == kind for each in every) for every in (charges, planned))
    if found <= max(most, 1):
        return ""
    return (
        f"account '{account}' has {found} charges like this one for the release, and a run makes {max(most, 1)}: it was"
        " charged before for another corpus or question, or by a version that named charges otherwise, and all count."
    )


def whole(events: Sequence[DpEvent]) -> DpEvent:
    """Several events as one; at least one is given."""
    return events[0] if len(events) == 1 else ComposedDpEvent(list(events))
