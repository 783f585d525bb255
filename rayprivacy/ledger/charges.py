"""A charge and its life: reserved -> started -> committed, or cancelled before it started.

A charge is identified by (account, release id, input digest). Its state is never stored: it is read off the entries, so
that state and book cannot disagree. There is no way back after `start`: from then on noise may have been drawn.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting.events import from_json
from rayprivacy.core.artifacts import digest_json
from rayprivacy.core.errors import LedgerError
from rayprivacy.ledger.chain import Entry


class ChargeState(StrEnum):
    """How far a charge has come."""

    RESERVED = "reserved"
    STARTED = "started"
    COMMITTED = "committed"
    CANCELLED = "cancelled"


_STATE_AFTER = {
    "start": ChargeState.STARTED,
    "commit": ChargeState.COMMITTED,
    "cancel": ChargeState.CANCELLED,
}


@dataclass(frozen=True)
class Charge:
    """What one release costs an account.

    Attributes:
        id: the ledger's name of the charge.
        account: the account that pays.
        release_id, input_digest: which release, computed from which input.
        event: what the mechanism does.
        state: how far it has come.
        entry_hash: hash of the last entry about it.
    """

    id: str
    account: str
    release_id: str
    input_digest: str
    event: DpEvent
    state: ChargeState
    entry_hash: str

    @property
    def is_live(self) -> bool:
        """Whether it counts against the budget."""
        return self.state is not ChargeState.CANCELLED


def charge_id(account: str, release_id: str, input_digest: str, attempt: int) -> str:
    """The name of a charge; `attempt` counts the cancelled ones before it."""
    return digest_json(["charge", account, release_id, input_digest, attempt])


def fold(entries: Iterable[Entry]) -> dict[str, Charge]:
    """The charges that a list of entries leaves behind, by id, in the order of their reservation."""
    charges: dict[str, Charge] = {}
    for entry in entries:
        if entry.charge:
            charges[entry.charge] = advance(charges.get(entry.charge), entry)
    return charges


def advance(charge: Charge | None, entry: Entry) -> Charge:
    """The charge after one more entry about it.

    Raises:
        LedgerError: no such entry can come next.
    """
    if charge is None and entry.kind == "reserve":
        return _reserved(entry)
    if charge is None or entry.kind not in _STATE_AFTER:
        raise LedgerError(f"entry {entry.seq} of the ledger is out of place: run `rayprivacy ledger verify`.")
    return replace(charge, state=_STATE_AFTER[entry.kind], entry_hash=entry.hash)


def _reserved(entry: Entry) -> Charge:
    return Charge(
        id=entry.charge,
        account=entry.account,
        release_id=entry.release_id,
        input_digest=entry.input_digest,
        event=from_json(json.loads(entry.events)),
        state=ChargeState.RESERVED,
        entry_hash=entry.hash,
    )
