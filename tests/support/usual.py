"""What most tests of the ledger do: open accounts, release something, and look at the book."""

from collections.abc import Callable
from typing import Any

import pytest
from dp_accounting.dp_event import DpEvent

from rayprivacy.core.errors import LedgerError
from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.certificate import build_certificate
from rayprivacy.ledger.charges import Charge
from rayprivacy.ledger.store import Ledger

USER, RECORD = PrivacyUnit.USER, PrivacyUnit.RECORD
ADD, REPLACE = NeighbouringRelation.ADD_OR_REMOVE, NeighbouringRelation.REPLACE
SELECTIVE, METRIC = AccountKind.SELECTIVE, AccountKind.METRIC_LOCAL
CAP = Budget(3.0, 1e-6)
TERMS = (USER, ADD, CAP)


def opened(url: str, account: str = "chat", **more: Any) -> Ledger:
    """The ledger at a URL, with an account."""
    ledger = Ledger.open(url)
    ledger.ensure_account(account, *TERMS, **more)
    return ledger


def reserve(ledger: Ledger, account: str, release: str, event: DpEvent, rung: int = 0) -> Charge:
    """A charge of what the account protects."""
    return ledger.reserve(account, release, "d", event, rung=rung, protection=ledger.account(account).protection)


def run(ledger: Ledger, account: str, release: str, event: DpEvent, rung: int = 0, output: bytes = b"x") -> Charge:
    """A whole release of what the account protects."""
    charge = ledger.start(reserve(ledger, account, release, event, rung))
    ledger.commit_output(charge, output)
    return charge


def kinds(ledger: Ledger, account: str = "chat") -> list[str]:
    return [entry.kind for entry in ledger.entries(account)]


def exposures(ledger: Ledger, account: str) -> list[str]:
    return [entry.release_id for entry in ledger.entries(account) if entry.kind == "exposure"]


def certificate(ledger: Ledger, account: str = "chat", release: str = "run", **more: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"corpus_digest": "c0ffee", "run_request": Budget(1.0, 1e-6), "test_key": False}
    facts |= {"assumptions": ["A user sits in one shard."], "versions": {"rayprivacy": "0"}}
    return build_certificate(ledger, account, release, **facts | {"stages": [{"name": "vote"}]} | more)


def refused(match: str | None, call: Callable[..., Any], *given: Any, **more: Any) -> None:
    with pytest.raises(LedgerError, match=match):
        call(*given, **more)
