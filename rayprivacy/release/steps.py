"""DP-SGD's part of the gate: the steps of a training, charged in chunks before they run.

Chunks of steps are *rungs* of one release:

    reserve (durable) -> start (lease) -> run the steps -> save their state -> commit        rung 1, 2, 3, ...

A crash repeats the steps after the last saved state under the charges they have. Coins and noise are keyed streams, and
the key names the account's ledger, the release, its input and its stage: the repeated steps draw the same coins and the
same noise, and only one of the two attempts is ever seen. Every rung commits the digest of the model as it is after it,
once. A repetition of the release that ends in another model (another version of a library, another order of sums) is
refused at the first chunk: both models would carry identical noise, so subtracting one from the other would cancel it
and reveal their exact difference. For the same reason two trainings of one release are two *stages* of it, each with
coins, noise and charges of its own.
"""

import time
from dataclasses import dataclass
from typing import Any

from dp_accounting.dp_event import DpEvent

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.core.private import RELEASE_SEAL, Released, digest_json
from rayprivacy.core.units import Protection
from rayprivacy.ledger.charges import Charge, ChargeState
from rayprivacy.ledger.store import LedgerApi
from rayprivacy.release.gate import input_digest, leased
from rayprivacy.release.step_mechanism import NoisySteps

_RENEW_SECONDS = 60.0


@dataclass(frozen=True)
class StepRelease:
    """One training: the account that pays, the mechanism it pays for, and the names of charges and streams.

    `opening` is the hash of the account's first entry: the noise of one ledger never serves another. `inputs` is the
    keyed digest of corpus, base model, mechanism and stage, and `chunk` the steps that are reserved at once. A
    `central` account pays for all steps of a schedule besides; it is empty where there is none.
    """

    account: str
    release_id: str
    opening: str
    inputs: str
    mechanism: NoisySteps
    chunk: int
    central: str = ""

    @staticmethod
    def of(
        ledger: LedgerApi,
        account: str,
        release_id: str,
        key: Key,
        mechanism: NoisySteps,
        chunk: int,
        corpus: str,
        base: str,
        *more: str,
        stage: str = "",
        central: str = "",
    ) -> "StepRelease":
        """Name a training by its inputs and its stage.

        `corpus` is a keyed digest, `base` and `more` are those of the base model and of what else is read. The stage
        names the training where a release has several: two stages have charges, coins and noise of their own, even if
        all else is equal.
        """
        if bool(central) is not (mechanism.light > 0):
            raise ReleaseError("a central account pays for redacted steps exactly where they take noise: give both.")
        parameters = digest_json(mechanism.parameters)
        digest = input_digest(key, "release-steps", stage, corpus, base, *more, parameters)
        opening = ledger.entries(account)[0].hash
        return StepRelease(account, release_id, opening, digest, mechanism, chunk, central)

    @property
    def stream(self) -> str:
        """Name of the keyed streams of coins and noise: of no other ledger, release, input or stage."""
        return digest_json([self.opening, self.release_id, self.inputs])

    @property
    def rungs(self) -> int:
        """How many chunks there are."""
        return len(self.mechanism.charged_chunks(self.chunk))

    def steps(self, rung: int) -> range:
        """The steps, from 0, of a rung, from 1."""
        return self.mechanism.charged_chunks(self.chunk)[rung - 1]

    def payments(self, rung: int) -> list[tuple[str, DpEvent, Protection]]:
        """Who pays for a rung, in order: the account, what its steps cost there, and what that protects."""
        steps, mechanism = self.steps(rung), self.mechanism
        own = (self.account, mechanism.event_of(steps), mechanism.protection)
        if not self.central:
            return [own]
        return [(self.central, mechanism.central_event_of(steps), Protection(mechanism.unit)), own]

    def rung_of(self, done: int) -> int:
        """The first rung that may still have to be committed after the first `done` steps."""
        chunks = self.mechanism.charged_chunks(self.chunk)
        return next(rung for rung, steps in enumerate(chunks, start=1) if steps.stop >= done)


class StepGate:
    """Charges the chunks of one training; on a cluster, one process of it has the gate."""

    def __init__(self, ledger: LedgerApi, release: StepRelease) -> None:
        self._ledger, self._release = ledger, release
        self._held: list[Charge] = []
        self._renewed = 0.0

    def begin(self, rung: int) -> None:
        """Reserve a chunk durably and lease it; its noise may be drawn from now on.

        A central account that pays besides comes first: once its charge has started, the ledger knows that what the
        other account pays for is no non-private run. An account that has less left is charged nothing for this chunk.
        """
        release, self._held = self._release, []
        for account, event, protection in release.payments(rung):
            charge = self._ledger.reserve(
                account, release.release_id, release.inputs, event, rung=rung, protection=protection
            )
            self._held.append(leased(self._ledger, charge))
        self._renewed = time.monotonic()

    def keep(self) -> None:
        """Extend the leases while a long chunk runs; called after every step."""
        if time.monotonic() > self._renewed + _RENEW_SECONDS:
            started = ChargeState.STARTED
            self._held = [self._ledger.renew(each) if each.state is started else each for each in self._held]
            self._renewed = time.monotonic()

    def end(self, rung: int, model_digest: str) -> None:
        """Commit a chunk whose state is saved, with the digest of the model as it is now; another model is refused."""
        if not self._held:
            raise ReleaseError(f"chunk {rung} ends before it began: begin() it first.")
        if not model_digest:
            raise ReleaseError(f"chunk {rung} ends without the digest of its model: give it.")
        for held in self._held:
            self._ledger.commit_output(held, _output(rung, model_digest))
            if self._ledger.output(held) != _output(rung, model_digest):
                raise ReleaseError(
                    f"release '{self._release.release_id}' was made before, and chunk {rung} ended in another model:"
                    " use that one, or change the recipe's seed, which is another release and another charge."
                )

    def released(self, value: Any, model_digest: str, rungs: int | None = None) -> Released[Any]:
        """The model, once its chunks are committed and the last of them for it; another model is refused.

        A search may stop a training: then it is the model after the first `rungs` chunks.
        """
        rungs = rungs or self._release.rungs
        if not model_digest or self._ledger.output(self._committed(rungs)) != _output(rungs, model_digest):
            raise ReleaseError("the trained weights are not those that were committed: run it again with --resume.")
        return Released(value, self._release.release_id, RELEASE_SEAL)

    def _committed(self, rungs: int) -> Charge:
        """The last of the first chunks, which are all committed."""
        charges = self._ledger.charges_of(self._release.account, self._release.release_id)
        done = {
            charge.rung: charge
            for charge in charges
            if charge.input_digest == self._release.inputs and charge.state is ChargeState.COMMITTED
        }
        missing = [rung for rung in range(1, rungs + 1) if rung not in done]
        if missing:
            raise ReleaseError(f"chunks {missing[:5]} of the training are not committed: run it again with --resume.")
        return done[rungs]


def _output(rung: int, model_digest: str) -> bytes:
    return digest_json({"rung": rung, "model": model_digest}).encode()
