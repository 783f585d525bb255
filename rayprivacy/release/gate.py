"""The release gate turns Private sums into Released figures, with the charge on disk before noise exists.

    reserve (durable) -> start -> draw once -> store output and commit in one transaction -> read back -> Released

What is returned is always what was stored. A crash anywhere leaves one charge and at most one output:

- before the reservation is durable: nothing happened;
- after it, before the commit: a rerun finds the charge, takes its lease over and draws under it. If the first process
  had drawn already, that draw was never stored, sent or seen, so the world gets one draw, as accounted; while the first
  process may still be drawing, the rerun waits for it;
- after the commit: a rerun is served the stored output.

Votes and histograms take the same steps: they differ in what is checked before and in how noise is read afterwards.

The ledger names the input by a keyed digest of sums and mechanism, so that its rows hold no hash that a guess of the
private sums could be checked against. The same release id with another input, or another stage, is another charge.
"""

import threading
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from dp_accounting.dp_event import DpEvent

from rayprivacy.core.artifacts import RELEASE_SEAL, Private, Released, digest_array, digest_json
from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.core.units import Protection
from rayprivacy.ledger.api import LedgerApi
from rayprivacy.ledger.charges import Charge, ChargeState
from rayprivacy.release.charging import input_digest, leased
from rayprivacy.release.histogram import HistogramMechanism, Shares
from rayprivacy.release.manifest import VoteManifest
from rayprivacy.release.margins import Margins
from rayprivacy.release.vote import Means, VoteMechanism, Votes

__all__ = ["Gate", "HistogramMechanism", "Margins", "VoteManifest", "VoteMechanism"]

_STORED = np.dtype("<i8")
_drawing = threading.Lock()  # a lease tells processes apart, not threads of one


class Mechanism(Protocol):
    """What the gate asks of a mechanism: its charge, its name for the digest, and one draw."""

    @property
    def event(self) -> DpEvent:
        """What the ledger is charged."""

    @property
    def protection(self) -> Protection:
        """What the event's epsilon is about."""

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that fixes the mechanism, as JSON values."""

    def draw(self, sums: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The sums plus fresh noise, in the same shape."""


@dataclass(frozen=True)
class Gate:
    """Releases against one account of one ledger.

    Attributes:
        ledger: the ledger, or its client on a cluster.
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
        *,
        stage: str = "",
    ) -> Released[Means]:
        """Charge, draw and store once; return the mean votes [queries, candidates] that the ledger now holds.

        Args:
            release_id: the release that pays.
            mechanism: the noise and its event.
            sums: int64 [queries, candidates], over all teachers.
            manifest: which teachers they are of.
            stage: names these votes where a run releases others, too; votes of two stages are two charges, even if
                they are equal, as the answers to two lots of questions may be. Empty where a release asks once.

        Raises:
            ReleaseError: votes are missing, doubled or not what the mechanism takes; nothing was charged.
            BudgetRefusedError: the account has less left than the mechanism costs; nothing was charged.
        """
        manifest.check(mechanism.teachers)
        noisy = self._release("release-votes", release_id, mechanism, mechanism.check(sums.reveal()), stage)
        return Released(mechanism.to_mean(noisy), release_id, RELEASE_SEAL)

    def release_histogram(
        self,
        release_id: str,
        mechanism: HistogramMechanism | Margins,
        sums: Private[npt.NDArray[Any]],
        rung: int = 0,
        *,
        stage: str = "",
    ) -> Released[Shares]:
        """Charge, draw and store once; return the shares [cells] of what the ledger now holds.

        Args:
            release_id: the release that pays.
            mechanism: the noise and its event.
            sums: int64 [cells], from `mechanism.contribution`.
            rung: the chunk of the release that pays, where it is charged in chunks.
            stage: names this histogram where a run releases several.

        Raises:
            ReleaseError: the sums are not what the mechanism takes; nothing was charged.
            BudgetRefusedError: the account has less left than the mechanism costs; nothing was charged.
        """
        checked = mechanism.check(sums.reveal())
        noisy = self._release("release-histogram", release_id, mechanism, checked, stage, rung)
        return Released(mechanism.to_shares(noisy), release_id, RELEASE_SEAL)

    def _release(
        self, kind: str, release_id: str, mechanism: Mechanism, sums: Votes, stage: str, rung: int = 0
    ) -> Votes:
        digest = input_digest(self.key, kind, stage, digest_array(sums), digest_json(mechanism.parameters))
        charge = self.ledger.reserve(
            self.account, release_id, digest, mechanism.event, rung=rung, protection=mechanism.protection
        )
        self._settle(charge, mechanism, sums)
        return self._stored(charge).reshape(sums.shape)

    def _settle(self, charge: Charge, mechanism: Mechanism, sums: Votes) -> None:
        with _drawing:
            self._draw_once(charge, mechanism, sums)

    def _draw_once(self, charge: Charge, mechanism: Mechanism, sums: Votes) -> None:
        started = leased(self.ledger, charge)
        if started.state is not ChargeState.COMMITTED:
            noisy = mechanism.draw(sums)
            self.ledger.commit_output(started, noisy.astype(_STORED).tobytes())

    def _stored(self, charge: Charge) -> Votes:
        blob = self.ledger.output(charge)
        if blob is None:
            raise ReleaseError(f"release '{charge.release_id}' has no stored output: run it again.")
        return np.frombuffer(blob, dtype=_STORED).astype(np.int64)
