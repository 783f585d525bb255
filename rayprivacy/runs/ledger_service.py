"""The ledger service of a run: a Ray actor through which workers on other nodes charge, and which exports gauges.

The driver starts it, because a ledger that is a file is on the driver's node, and workers may not be.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rayprivacy.ledger.client import LedgerClient, close_service
from rayprivacy.ledger.service import Address, find_service
from rayprivacy.ledger.settings import PrivacyConfig


def ledger_address(privacy: PrivacyConfig, watched: bool) -> Address:
    """Where the ledger of a run is; `watched` if its service may export gauges."""
    key_path = Path(privacy.ledger_key).absolute() if privacy.ledger_key else None
    return Address.of(privacy.ledger, key_path, watched)


@contextmanager
def ledger_service(privacy: PrivacyConfig, watched: bool) -> Iterator[None]:
    """Start the service and stop it again, unless it was running already: others go on using it then."""
    address = ledger_address(privacy, watched)
    shared = find_service(address) is not None
    LedgerClient(address)
    try:
        yield
    finally:
        if not shared:
            close_service(address.url, address.key_path, watched)
