"""The account that pays for a run: looked at before any work, and opened when the run is about to charge it.

What a run will be refused is known before it begins, and a run that is refused leaves no account, nor a ledger, behind.
So both are opened as late as that: an account is for good, and a plan that was registered for a run that never came
would be in the way of the next one.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from rayprivacy.accounting.events import leaves, to_json
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.keys import load_key
from rayprivacy.core.units import Budget, Protection
from rayprivacy.ledger import accounts, book, opening
from rayprivacy.ledger.database import ledger_file
from rayprivacy.ledger.opening import More
from rayprivacy.ledger.store import Ledger, LedgerApi
from rayprivacy.runs.directory import Run, stored_recipe
from rayprivacy.runs.meaning import meaning_of
from rayprivacy.runs.plan import Plan
from rayprivacy.runs.recipe import Recipe


class _Payer(NamedTuple):
    """One of the accounts of a run, with what it is asked for."""

    name: str
    release_id: str
    composition: str
    budget: Budget
    protection: Protection
    terms: More


def _payers(recipe: Recipe, plan: Plan) -> Iterator[_Payer]:
    privacy, second, terms = recipe.privacy, plan.second, terms_of(recipe, plan)
    own = recipe.release_id, privacy.composition
    yield _Payer(privacy.account, *own, privacy.budget, plan.protection, More(**terms, plan=plan.events))
    if second is not None:
        more = More(corpus=terms["corpus"], of=terms["of"], plan=[second.event], kind=second.protection.kind)
        yield _Payer(second.account, *own, second.budget, second.protection, more)


def look(recipe: Recipe, plan: Plan, expected_head: str | None = None, *, begun: bool = False) -> None:
    """Refuse what `open_account` would refuse; nothing is opened or written.

    A run that has `begun` is also refused where it was charged for something that its plan does not have any more.
    """
    privacy = recipe.privacy
    if privacy.ledger_key:
        load_key(Path(privacy.ledger_key))
    file = ledger_file(privacy.ledger)
    if file is not None and not file.exists():
        if expected_head is not None:
            raise book.older_copy(expected_head)
        return _rehearse(_payers(recipe, plan))
    with closing(privacy.open_ledger(expected_head)) as ledger:
        known = {account.name for account in ledger.accounts()}
        if begun and privacy.account in known:
            _check_charges(ledger, privacy.account, recipe.release_id, plan)
        for payer in _payers(recipe, plan):
            _look_at(ledger, payer) if payer.name in known else _rehearse([payer])


def _rehearse(payers: Iterable[_Payer]) -> None:
    """Open accounts in a ledger of their own, which is gone afterwards."""
    with TemporaryDirectory() as folder, closing(Ledger.open(f"sqlite:///{folder}/ledger.db")) as ledger:
        for payer in payers:
            settle_account(ledger, *payer)


def _look_at(ledger: Ledger, payer: _Payer) -> None:
    name, release_id, composition, budget, protection, terms = payer
    wanted = opening.draft(name, protection.unit, protection.relation, budget, composition, terms)
    found, plan = ledger.draft_plan(wanted, terms["plan"])
    if found is not None:
        accounts.with_meaning(found, {"of": terms["of"]})
    if plan is None and not ledger.charges_of(name, release_id):
        ledger.check(name, whole(terms["plan"]), protection)


def _check_charges(ledger: Ledger, account: str, release_id: str, plan: Plan) -> None:
    """Refuse to go on with other charges than the run began with: both would be paid for, and one of them for nothing.

    Noise is not calibrated anew (`calibration`); this holds for whatever else a version may compute otherwise.
    """
    planned = {json.dumps(to_json(event)) for event in plan.charges}
    made = {json.dumps(to_json(charge.event)) for charge in ledger.charges_of(account, release_id) if charge.is_live}
    if not made <= planned:
        raise ConfigError(
            f"the run was charged for {min(made - planned)}, which the installed versions do not plan any more: finish"
            " it with the versions that it began with, or choose another --out for a new release."
        )


def open_account(recipe: Recipe, plan: Plan, expected_head: str | None = None) -> Ledger:
    """Open the ledger, if it has `expected_head`, and the accounts; refuse what either of them cannot pay."""
    ledger = recipe.privacy.open_ledger(expected_head)
    for payer in _payers(recipe, plan):
        settle_account(ledger, *payer)
    return ledger


def was_charged(run: Run[Any]) -> bool:
    """Whether a run has begun, and its release was charged."""
    file = ledger_file(run.recipe.privacy.ledger)
    if stored_recipe(run.root) is None or (file is not None and not file.exists()):
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
