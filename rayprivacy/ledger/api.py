"""A ledger as runs use it: in this process (`store.Ledger`), or through an actor (`client.LedgerClient`)."""

from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from rayprivacy.ledger.client import LedgerClient  # imports Ray
    from rayprivacy.ledger.store import Ledger

LedgerApi = Union["Ledger", "LedgerClient"]
