"""The ledger's front door for the length of a run: workers on other nodes charge through it, and it exports gauges.

It is opened from the driver: a ledger that is a file is on this node, workers may not be.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rayprivacy.ledger.client import close_front_door, connect
from rayprivacy.ledger.service import Address, find_door
from rayprivacy.ledger.settings import PrivacyConfig


@contextmanager
def ledger_door(privacy: PrivacyConfig) -> Iterator[None]:
    """Open the front door and close it again, unless it was open: others go on using it then."""
    key_path = Path(privacy.ledger_key).absolute() if privacy.ledger_key else None
    address = Address.of(privacy.ledger, key_path)
    shared = find_door(address) is not None
    connect(address.url, key_path)
    try:
        yield
    finally:
        if not shared:
            close_front_door(address.url, key_path)
