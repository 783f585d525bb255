"""What every release does when it is charged: it names its input for the ledger, and waits for its lease."""

import time

from rayprivacy.core.errors import LeaseHeldError
from rayprivacy.core.keys import Key
from rayprivacy.ledger.api import LedgerApi
from rayprivacy.ledger.charges import Charge

POLL_SECONDS = 0.2


def input_digest(key: Key, kind: str, stage: str, *parts: str) -> str:
    """Keyed digest that tells one release of a run from another: by kind, stage and content.

    Two releases of one run with the same digest are one charge, and one draw of noise. A method that makes several
    releases of a kind names the stage of each; then they differ even if all they read and all their settings are equal.

    Args:
        key: the run's secret.
        kind: of release: votes, a histogram or steps.
        stage: names the release among those of its kind; empty where a run has one alone, whose digest it leaves alone.
        parts: digests of what is read and of the mechanism.

    >>> key = Key.for_tests()
    >>> input_digest(key, "release-steps", "", "corpus") == key.digest("release-steps", "corpus")
    True
    >>> input_digest(key, "release-steps", "parses", "corpus") == key.digest("release-steps", "parses", "corpus")
    False
    """
    # The kind of a staged release is another one: a stage is never mistaken for the first of the parts.
    return key.digest(f"{kind} of a stage", stage, *parts) if stage else key.digest(kind, *parts)


def leased(ledger: LedgerApi, charge: Charge) -> Charge:
    """Start a charge, waiting while another process has its lease.

    Returns:
        The charge, started by this process, taken over from one whose lease has run out, or committed by another one.
    """
    while True:
        try:
            return ledger.start(charge)
        except LeaseHeldError:
            time.sleep(POLL_SECONDS)
