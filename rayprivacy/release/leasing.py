"""Wait for the right to draw: one process at a time has the lease of a charge."""

import time

from rayprivacy.core.errors import LeaseHeldError
from rayprivacy.ledger.api import LedgerApi
from rayprivacy.ledger.charges import Charge

POLL_SECONDS = 0.2


def leased(ledger: LedgerApi, charge: Charge) -> Charge:
    """Start a charge, or take it over, or find it committed, once its holder has committed, died, or let it run out."""
    while True:
        try:
            return ledger.start(charge)
        except LeaseHeldError:
            time.sleep(POLL_SECONDS)
