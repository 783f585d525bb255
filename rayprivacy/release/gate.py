"""The release gate turns Private sums into Released figures, with the charge on disk before noise exists.

    reserve (durable) -> start -> draw once -> store output and commit in one transaction -> read back -> Released

What is returned is always what was stored. A crash anywhere leaves one charge and at most one output:

- before the reservation is durable: nothing happened;
- after it, before the commit: a rerun finds the charge, takes its lease over and draws under it. If the first process
  had drawn already, that draw was never stored, sent or seen, so the world gets one draw, as accounted; while the first
  process may still be drawing, the rerun waits for it;
- after the commit: a rerun is served the stored output.

Votes and histograms take the same steps: they differ in what is checked before and in how noise is read afterwards.

A charge is named by the corpus, the question, the mechanism and the stage, in a keyed digest; never by the sums (see
`charging`). The same release id with another of these is another charge, whatever the sums are. The same ones are the
same charge: the stored output is served, also where another machine's sums differ in their last bits.
"""

import threading
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from dp_accounting.dp_event import DpEvent

from rayprivacy.core.artifacts import RELEASE_SEAL, Private, Released, digest_json
from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.core.units import Protection
from rayprivacy.ledger.api import LedgerApi
from rayprivacy.ledger.charges import Charge, ChargeState
from rayprivacy.release.charging import Asked, input_digest, leased
from rayprivacy.release.histogram import HistogramMechanism, Shares
from rayprivacy.release.manifest import VoteManifest
from rayprivacy.release.margins import Margins
from rayprivacy.release.vote import Means, VoteMechanism, Votes

__all__ = ["Asked", "Gate", "HistogramMechanism", "Margins", "VoteManifest", "VoteMechanism"]

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
        asked: Asked,
        stage: str = "",
    ) -> Released[Means]:
        """Charge, draw and store once; return the mean votes [queries, candidates] that the ledger now holds.

        Args:
            release_id: the release that pays.
            mechanism: the noise and its event.
            sums: int64 [queries, candidates], over all teachers.
            manifest: which teachers they are of.
            asked: what the teachers learnt from, and all that they are and are asked besides.
            stage: names these votes where a run releases others, too; votes of two stages are two charges.

        Raises:
            ReleaseError: votes are missing, doubled or not what the mechanism takes; nothing was charged.
            BudgetRefusedError: the account has less left than the mechanism costs; nothing was charged.
        """
        manifest.check(mechanism.teachers)
        checked = mechanism.check(sums.reveal())
        charge = self._reserved("release-votes", release_id, mechanism, asked, stage)
        noisy = self._released(charge, mechanism, checked)
        return Released(mechanism.to_mean(noisy), release_id, RELEASE_SEAL)

    def release_histogram(
        self,
        release_id: str,
        mechanism: HistogramMechanism | Margins,
        sums: Private[npt.NDArray[Any]],
        rung: int = 0,
        *,
        asked: Asked,
        stage: str = "",
    ) -> Released[Shares]:
        """Charge, draw and store once; return the shares [cells] of what the ledger now holds.

        Args:
            release_id: the release that pays.
            mechanism: the noise and its event.
            sums: int64 [cells], from `mechanism.contribution`.
            rung: the chunk of the release that pays, where it is charged in chunks.
            asked: what is counted, and into which cells.
            stage: names this histogram where a run releases several.

        Raises:
            ReleaseError: the sums are not what the mechanism takes; nothing was charged.
            BudgetRefusedError: the account has less left than the mechanism costs; nothing was charged.
        """
        checked = mechanism.check(sums.reveal())
        charge = self._reserved("release-histogram", release_id, mechanism, asked, stage, rung)
        noisy = self._released(charge, mechanism, checked)
        return Released(mechanism.to_shares(noisy), release_id, RELEASE_SEAL)

    def _reserved(
        self, kind: str, release_id: str, mechanism: Mechanism, asked: Asked, stage: str, rung: int = 0
    ) -> Charge:
        """The charge of a question; it is named here, where no sums are known."""
        parameters = digest_json(mechanism.parameters)
        digest = input_digest(self.key, kind, stage, asked.corpus, asked.question, parameters)
        return self.ledger.reserve(
            self.account, release_id, digest, mechanism.event, rung=rung, protection=mechanism.protection
        )

    def _released(self, charge: Charge, mechanism: Mechanism, sums: Votes) -> Votes:
        with _drawing:
            self._draw_once(charge, mechanism, sums)
        return self._stored(charge).reshape(sums.shape)

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
