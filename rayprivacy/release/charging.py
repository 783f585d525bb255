"""What every release does when it is charged: it names its input for the ledger, and waits for its lease.

A charge is named by the question and never by the answer: by what is read, what is asked, mechanism and stage. Answers
are private. A name made of them would say whether two answers are equal: two questions with equal ones would share a
charge and a draw of noise, and others would not. So nothing here, and nothing that calls it, knows an answer.
"""

import re
import time
from dataclasses import dataclass

from rayprivacy.core.errors import LeaseHeldError, ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.ledger.api import LedgerApi
from rayprivacy.ledger.charges import Charge

POLL_SECONDS = 0.2
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Asked:
    """What a release reads and what it asks of it, each by its digest.

    The same question is served the stored answer, whatever it comes to on another machine. So whatever can change the
    answer and is neither in the corpus, nor a parameter of the mechanism, nor in the release id, belongs to the
    question: what is asked of a row, the public models that read it, and how. All of that is public.

    Attributes:
        corpus: keyed digest of the private rows (`ShardManifest.corpus_digest`).
        question: digest of the question.
    """

    corpus: str
    question: str

    def __post_init__(self) -> None:
        for name in ("corpus", "question"):
            value = getattr(self, name)
            if not isinstance(value, str) or not _DIGEST.fullmatch(value):
                raise ReleaseError(f"asked.{name} is no digest of 64 hex digits: give that of what is read, or asked.")


def input_digest(key: Key, kind: str, stage: str, *parts: str) -> str:
    """Keyed digest that tells one release of a run from another: by kind, stage and content.

    Two releases of one run with the same digest are one charge, and one draw of noise. A method that makes several
    releases of a kind names the stage of each; then they differ even if all they read and all their settings are equal.

    >>> key = Key.for_tests()
    >>> input_digest(key, "release-steps", "", "corpus") == key.digest("release-steps", "corpus")
    True
    >>> input_digest(key, "release-steps", "parses", "corpus") == key.digest("release-steps", "parses", "corpus")
    False
    """
    # The kind of a staged release is another one: a stage is never mistaken for the first of the parts.
    return key.digest(f"{kind} of a stage", stage, *parts) if stage else key.digest(kind, *parts)


def leased(ledger: LedgerApi, charge: Charge) -> Charge:
    """Start a charge, waiting while another process has its lease."""
    while True:
        try:
            return ledger.start(charge)
        except LeaseHeldError:
            time.sleep(POLL_SECONDS)
