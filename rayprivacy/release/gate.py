"""The release gate turns Private sums into Released figures, with the charge on disk before noise exists.

    reserve (durable) -> start -> draw once -> store output and commit in one transaction -> read back -> Released

What is returned is always what was stored. A crash anywhere leaves one charge and at most one output:

- before the reservation is durable: nothing happened;
- after it, before the commit: a rerun finds the charge, takes its lease over and draws under it. If the first process
  had drawn already, that draw was never stored, sent or seen, so the world gets one draw, as accounted; while the first
  process may still be drawing, the rerun waits for it;
- after the commit: a rerun is served the stored output.

A charge is named by the question and never by the answer: by what is read, what is asked, mechanism and stage, in a
keyed digest. Answers are private. A name made of them would say whether two answers are equal: two questions with equal
ones would share a charge and a draw of noise, and others would not. So nothing here, and nothing that calls it, knows
an answer when it names a charge. The same release id with another of these is another charge, whatever the sums are.
The same ones are the same charge: the stored output is served, also where another machine's sums differ in their last
bits.

Votes, histograms, figures and counts by key take the same steps: they differ in what is checked before and in how noise
is read afterwards.
"""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from dp_accounting.dp_event import DpEvent

from rayprivacy.core.errors import LeaseHeldError, ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.core.private import RELEASE_SEAL, Private, Released, digest_json
from rayprivacy.core.units import Protection
from rayprivacy.ledger.charges import Charge, ChargeState
from rayprivacy.ledger.store import LedgerApi
from rayprivacy.release.figure_vectors import FigureVectors
from rayprivacy.release.histogram import HistogramMechanism, Margins, Shares
from rayprivacy.release.thresholded import KeySums, KnownKeys, ReleasedCounts, ThresholdedCounts
from rayprivacy.release.votes import Means, VoteMechanism, Votes

_POLL_SECONDS = 0.2
_DIGEST = re.compile("[0-9a-f]{64}")
_STORED = np.dtype("<i8")
_drawing = threading.Lock()  # a lease tells processes apart, not threads of one


@dataclass(frozen=True)
class Asked:
    """What a release reads and what it asks of it: the keyed digest of the private rows, and that of the question.

    The same question is served the stored answer, whatever it comes to on another machine. So whatever can change the
    answer and is neither in the corpus, nor a parameter of the mechanism, nor in the release id, belongs to the
    question: what is asked of a row, the public models that read it, and how. All of that is public.
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
            time.sleep(_POLL_SECONDS)


@dataclass(frozen=True)
class VoteManifest:
    """The teachers whose votes a sum holds, one id per summand.

    A retried task can hand in a teacher's votes twice, a lost one not at all. Twice doubles one user's influence, and a
    missing one makes the number of votes depend on the data; the sensitivity covers neither.
    """

    teachers: tuple[int, ...]

    def check(self, teachers: int) -> None:
        """Require the ids 0 .. teachers-1, each exactly once."""
        votes = Counter(self.teachers)
        doubled = sorted(teacher for teacher, times in votes.items() if times > 1)
        unknown = sorted(teacher for teacher in votes if not 0 <= teacher < teachers)
        missing = [teacher for teacher in range(teachers) if teacher not in votes]
        for ids, what in ((doubled, "voted more than once"), (unknown, "do not exist"), (missing, "did not vote")):
            if ids:
                raise ReleaseError(f"teachers {ids[:5]} of {teachers} {what}: collect every teacher's votes once.")


class Charged(Protocol):
    """What the gate asks of a mechanism before it is charged: its charge, and its name for the digest."""

    @property
    def event(self) -> DpEvent:
        """What the ledger is charged."""

    @property
    def protection(self) -> Protection:
        """What the event's epsilon is about."""

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that fixes the mechanism, as JSON values."""


class Mechanism(Charged, Protocol):
    """A mechanism that adds noise to sums of a known shape."""

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

    def release_figures(
        self,
        release_id: str,
        mechanism: FigureVectors,
        sums: Private[npt.NDArray[Any]],
        *,
        asked: Asked,
        stage: str = "",
    ) -> Released[Means]:
        """Charge, draw and store once; return the noisy sums [cells], in units, that the ledger now holds.

        Args:
            release_id: the release that pays.
            mechanism: the noise and its event.
            sums: int64 [cells], from `mechanism.contribution`.
            asked: what is measured, and of which models and texts.
            stage: names these figures where a run releases several.

        Raises:
            ReleaseError: the sums are not what the mechanism takes; nothing was charged.
            BudgetRefusedError: the account has less left than the mechanism costs; nothing was charged.
        """
        checked = mechanism.check(sums.reveal())
        charge = self._reserved("release-figures", release_id, mechanism, asked, stage)
        return Released(mechanism.to_sums(self._released(charge, mechanism, checked)), release_id, RELEASE_SEAL)

    def release_counts(
        self,
        release_id: str,
        mechanism: ThresholdedCounts,
        sums: Private[KeySums],
        *,
        known: KnownKeys = (),
        asked: Asked,
        stage: str = "",
    ) -> Released[ReleasedCounts]:
        """Charge, draw and store once; return the keys that passed, which the ledger now holds.

        Args:
            release_id: the release that pays.
            mechanism: the noise, the threshold and their event.
            sums: how many units have each key, from `mechanism.contribution`.
            known: keys that follow from public settings and earlier releases, which `asked` names.
            asked: what is read, and how keys are found in it.
            stage: names these counts where a run releases several.

        Raises:
            ReleaseError: the sums are not what the mechanism takes; nothing was charged.
            BudgetRefusedError: the account has less left than the mechanism costs; nothing was charged.
            EventError: the account keeps no part of its delta for thresholds; nothing was charged.
        """
        checked = mechanism.check(sums.reveal())
        charge = self._reserved("release-counts", release_id, mechanism, asked, stage)
        stored = self._stored(charge, lambda: mechanism.draw(checked, known))
        return Released(mechanism.to_counts(stored), release_id, RELEASE_SEAL)

    def _reserved(
        self, kind: str, release_id: str, mechanism: Charged, asked: Asked, stage: str, rung: int = 0
    ) -> Charge:
        """The charge of a question; it is named here, where no sums are known."""
        parameters = digest_json(mechanism.parameters)
        digest = input_digest(self.key, kind, stage, asked.corpus, asked.question, parameters)
        return self.ledger.reserve(
            self.account, release_id, digest, mechanism.event, rung=rung, protection=mechanism.protection
        )

    def _released(self, charge: Charge, mechanism: Mechanism, sums: Votes) -> Votes:
        """The noisy sums that the ledger holds."""
        blob = self._stored(charge, lambda: mechanism.draw(sums).astype(_STORED).tobytes())
        return np.frombuffer(blob, dtype=_STORED).astype(np.int64).reshape(sums.shape)

    def _stored(self, charge: Charge, draw: Callable[[], bytes]) -> bytes:
        """The output that the ledger holds, drawn now where it holds none."""
        with _drawing:
            started = leased(self.ledger, charge)
            if started.state is not ChargeState.COMMITTED:
                self.ledger.commit_output(started, draw())
        blob = self.ledger.output(charge)
        if blob is None:
            raise ReleaseError(f"release '{charge.release_id}' has no stored output: run it again.")
        return blob
