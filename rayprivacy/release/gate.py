"""The release gate: Private in, Released out, with the charge on disk before noise exists.

    reserve (durable) -> start -> draw once -> store output and commit in one transaction -> read back -> Released

What is returned is always what was stored. A crash anywhere leaves one charge and at most one output:

- before the reservation is durable: nothing happened;
- after it, before the commit: a rerun finds the charge, takes its lease over and draws under it. If the first process
  had drawn already, that draw was never stored, sent or seen, so the world gets one draw, as accounted; while the first
  process may still be drawing, the rerun waits for it;
- after the commit: a rerun is served the stored output.

The ledger names the input by a keyed digest of sums and mechanism, so that its rows hold no hash that a guess of the
private sums could be checked against. The same release id with another input is another charge.
"""

import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rayprivacy.core.artifacts import RELEASE_SEAL, Private, Released, digest_array, digest_json
from rayprivacy.core.errors import LeaseHeldError, ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.ledger.api import LedgerApi
from rayprivacy.ledger.charges import Charge, ChargeState
from rayprivacy.release.manifest import VoteManifest
from rayprivacy.release.vote import Means, VoteMechanism, Votes

__all__ = ["Gate", "VoteManifest", "VoteMechanism"]

POLL_SECONDS = 0.2
_STORED = np.dtype("<i8")
_drawing = threading.Lock()  # a lease tells processes apart, not threads of one


@dataclass(frozen=True)
class Gate:
    """Releases against one account of one ledger.

    Attributes:
        ledger: the book, or its front door on a cluster.
        account: the account that pays.
        key: the run's secret, for digests of private inputs.
    """

    ledger: LedgerApi
    account: str
    key: Key

    def release_votes(
        self,
        release_id: str,
        mechanism: VoteMechanism,
        sums: Private[npt.NDArray[Any]],
        manifest: VoteManifest,
    ) -> Released[Means]:
        """Charge, draw and store once; return the mean votes [queries, candidates] that the ledger now holds.

        Raises:
            ReleaseError: votes are missing, doubled or not what the mechanism takes; nothing was charged.
            BudgetRefusedError: the account has less left than the mechanism costs; nothing was charged.
        """
        manifest.check(mechanism.teachers)
        votes = mechanism.check(sums.reveal())
        digest = self.key.digest("release-votes", digest_array(votes), digest_json(mechanism.parameters))
        charge = self.ledger.reserve(self.account, release_id, digest, mechanism.event, protection=mechanism.protection)
        self._settle(charge, mechanism, votes)
        return Released(mechanism.to_mean(self._stored(charge, mechanism)), release_id, RELEASE_SEAL)

    def _settle(self, charge: Charge, mechanism: VoteMechanism, votes: Votes) -> None:
        with _drawing:
            self._draw_once(charge, mechanism, votes)

    def _draw_once(self, charge: Charge, mechanism: VoteMechanism, votes: Votes) -> None:
        started = self._leased(charge)
        if started.state is not ChargeState.COMMITTED:
            noisy = mechanism.draw(votes)
            self.ledger.commit_output(started, noisy.astype(_STORED).tobytes())

    def _leased(self, charge: Charge) -> Charge:
        while True:
            try:
                return self.ledger.start(charge)
            except LeaseHeldError:
                time.sleep(POLL_SECONDS)  # until the holder has committed, has died, or its term is over

    def _stored(self, charge: Charge, mechanism: VoteMechanism) -> Votes:
        blob = self.ledger.output(charge)
        if blob is None:
            raise ReleaseError(f"release '{charge.release_id}' has no stored output: run it again.")
        noisy = np.frombuffer(blob, dtype=_STORED).astype(np.int64)
        return noisy.reshape(mechanism.queries, mechanism.candidates)
