"""The ledger's front door for the length of a run: workers on other nodes charge through it, and it exports gauges.

It is opened from the driver: a ledger that is a file is on this node, workers may not be.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rayprivacy.ledger.client import LedgerClient, close_front_door
from rayprivacy.ledger.service import Address, find_door
from rayprivacy.ledger.settings import PrivacyConfig


def ledger_address(privacy: PrivacyConfig, watched: bool) -> Address:
    """Where a run's ledger is; `watched` if its front door may export gauges."""
    key_path = Path(privacy.ledger_key).absolute() if privacy.ledger_key else None
    return Address.of(privacy.ledger, key_path, watched)


@contextmanager
def ledger_door(privacy: PrivacyConfig, watched: bool) -> Iterator[None]:
    """Open the front door and close it again, unless it was open: others go on using it then."""
    address = ledger_address(privacy, watched)
    shared = find_door(address) is not None
    LedgerClient(address)
    try:
        yield
    finally:
        if not shared:
            close_front_door(address.url, address.key_path, watched)
