"""The account that pays for a run: opened, or refused, before any work."""

from collections.abc import Sequence
from pathlib import Path

from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from rayprivacy.core.keys import load_key
from rayprivacy.core.units import NeighbouringRelation, Protection
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.recipe import Recipe


def open_account(
    recipe: Recipe, events: Sequence[DpEvent], protection: Protection, expected_head: str | None = None
) -> Ledger:
    """Open the ledger and refuse what the account cannot pay.

    Args:
        recipe: names the ledger and the account, which is opened with the recipe's budget if it is not there.
        events: everything the run will charge.
        protection: what the events protect.
        expected_head: a head of the ledger seen earlier.

    Raises:
        BudgetRefusedError: less is left than this run asks for, and it has not been charged before.
        LedgerError: the account protects another unit, relation or composition, or the ledger lacks the expected head.
    """
    privacy = recipe.privacy
    key = load_key(Path(privacy.ledger_key)) if privacy.ledger_key else None
    ledger = Ledger.open(privacy.ledger, expected_head, key)
    ledger.ensure_account(
        privacy.account,
        privacy.unit,
        NeighbouringRelation.ADD_OR_REMOVE,
        privacy.budget,
        privacy.composition,
        corpus=privacy.corpus,
        plan=events,
    )
    if not ledger.charges_of(privacy.account, recipe.release_id):
        ledger.check(privacy.account, ComposedDpEvent(list(events)), protection)
    return ledger
