"""DP-SGD's part of the gate: the mechanism of its steps, charged in chunks before they run.

Source: Abadi et al. (2016), "Deep Learning with Differential Privacy", algorithm 1, with Poisson sampling.

In each step every user (or record) takes part by a coin of probability q of its own. The sum of the clipped gradients
changes by at most C when one user is added or removed, the noise has standard deviation sigma * C on every coordinate,
and the sum is divided by a public number. So a step is the event Poisson(q, Gaussian(sigma)), also when nobody was
sampled: an empty step draws noise and counts.

Chunks of steps are *rungs* of one release:

    reserve (durable) -> start (lease) -> run the steps -> save their state -> commit        rung 1, 2, 3, ...

A crash repeats the steps after the last saved state under the charges they have. Coins and noise are keyed streams, and
the key names the account's book, the release and its input: the repeated steps draw the same coins and the same noise,
and only one of the two attempts is ever seen. Every rung commits the digest of the model as it is after it, once.
Whoever makes the same release again, by another road that ends in another model (another version of a library, another
order of sums), is refused at the first chunk: both models would carry identical noise, so subtracting one from the
other would cancel it and reveal their exact difference.

>>> steps = SampledGaussian(sampling_rate=0.01, noise_multiplier=1.0, clipping_norm=0.5, steps=10)
>>> steps.event.count, steps.event.event.sampling_probability, steps.noise_std
(10, 0.01, 0.5)
"""

import math
import time
from dataclasses import asdict, dataclass
from typing import Any

from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from rayprivacy.accounting.events import validate
from rayprivacy.core.artifacts import RELEASE_SEAL, Released, digest_json
from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit, Protection
from rayprivacy.ledger.api import LedgerApi
from rayprivacy.ledger.charges import Charge, ChargeState
from rayprivacy.release.leasing import leased

RENEW_SECONDS = 60.0
_FORMAT = "steps-2:"  # outputs of version 0.1, which bound the last rung alone, are bare digests


@dataclass(frozen=True)
class SampledGaussian:
    """Sensitivity, noise and event of all steps of one training, which cannot be set apart.

    Attributes:
        sampling_rate: q, the probability that a user (or record) takes part in a step.
        noise_multiplier: sigma, noise std / clipping norm.
        clipping_norm: C, bound on the L2 norm of what one user (or record) adds to a step's sum: its sensitivity.
        steps: T.
        unit: whose gradient is clipped and whose coin is tossed.

    Raises:
        ReleaseError: the clipping norm is not positive and finite, the number of steps is not positive and whole, or
            the unit is neither user nor record.
        EventError: q or sigma is out of range.
    """

    sampling_rate: float
    noise_multiplier: float
    clipping_norm: float
    steps: int
    unit: PrivacyUnit = PrivacyUnit.USER

    def __post_init__(self) -> None:
        if not (math.isfinite(self.clipping_norm) and self.clipping_norm > 0):
            raise ReleaseError(f"the clipping norm is {self.clipping_norm}: give a positive finite number.")
        if type(self.steps) is not int or self.steps < 1:
            raise ReleaseError(f"steps is {self.steps!r}: give a whole number of at least 1.")
        if self.unit not in (PrivacyUnit.USER, PrivacyUnit.RECORD):
            raise ReleaseError(f"the unit is '{self.unit}': DP-SGD protects a user or a record.")
        validate(self.event)

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each coordinate of a step's sum."""
        return self.noise_multiplier * self.clipping_norm

    @property
    def event(self) -> SelfComposedDpEvent:
        """What all steps cost together."""
        return self.event_of(self.steps)

    def event_of(self, steps: int) -> SelfComposedDpEvent:
        """What so many steps cost."""
        return SelfComposedDpEvent(
            PoissonSampledDpEvent(float(self.sampling_rate), GaussianDpEvent(float(self.noise_multiplier))), steps
        )

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that fixes the mechanism, as JSON values."""
        return {"mechanism": "sampled-gaussian", **asdict(self)}

    @property
    def protection(self) -> Protection:
        """What the event's epsilon is about."""
        return Protection(self.unit)


@dataclass(frozen=True)
class StepRelease:
    """One training: who pays, for what, and under which names.

    Attributes:
        account: the account that pays.
        release_id: names the release.
        book: hash of the account's first entry: the noise of one book never serves another.
        inputs: keyed digest of corpus, base model and mechanism.
        mechanism: the steps.
        chunk: steps that are reserved at once.
    """

    account: str
    release_id: str
    book: str
    inputs: str
    mechanism: SampledGaussian
    chunk: int

    @staticmethod
    def of(
        ledger: LedgerApi, account: str, release_id: str, key: Key, mechanism: SampledGaussian, chunk: int, *inputs: str
    ) -> "StepRelease":
        """Name a training by its inputs: digests of the corpus, of the base model and of what else it reads."""
        digest = key.digest("release-steps", *inputs, digest_json(mechanism.parameters))
        return StepRelease(account, release_id, ledger.entries(account)[0].hash, digest, mechanism, chunk)

    @property
    def stream(self) -> str:
        """Name of the keyed streams of coins and noise: of no other book, release or input."""
        return digest_json([self.book, self.release_id, self.inputs])

    @property
    def rungs(self) -> int:
        """How many chunks there are."""
        return -(-self.mechanism.steps // self.chunk)

    def steps(self, rung: int) -> range:
        """The steps, from 0, of a rung, from 1."""
        return range((rung - 1) * self.chunk, min(rung * self.chunk, self.mechanism.steps))


class StepGate:
    """Charges the chunks of one training; on a cluster, one process of it has the gate."""

    def __init__(self, ledger: LedgerApi, release: StepRelease) -> None:
        self._ledger, self._release = ledger, release
        self._held: Charge | None = None
        self._renewed = 0.0

    def begin(self, rung: int) -> None:
        """Reserve a chunk durably and lease it; its noise may be drawn from now on.

        Raises:
            BudgetRefusedError: the account has less left; nothing was charged for this chunk.
            LedgerError: the release was charged for another event.
        """
        release = self._release
        charge = self._ledger.reserve(
            release.account,
            release.release_id,
            release.inputs,
            release.mechanism.event_of(len(release.steps(rung))),
            rung=rung,
            protection=release.mechanism.protection,
        )
        self._held, self._renewed = leased(self._ledger, charge), time.monotonic()

    def keep(self) -> None:
        """Extend the lease while a long chunk runs; called after every step."""
        if self._held and self._held.state is ChargeState.STARTED and time.monotonic() > self._renewed + RENEW_SECONDS:
            self._held, self._renewed = self._ledger.renew(self._held), time.monotonic()

    def end(self, rung: int, model_digest: str) -> None:
        """Commit a chunk whose state is saved, with the digest of the model as it is now.

        Raises:
            ReleaseError: the digest is empty, or this chunk was made before, with another model.
        """
        if self._held is None:
            raise ReleaseError(f"chunk {rung} ends before it began: begin() it first.")
        if not model_digest:
            raise ReleaseError(f"chunk {rung} ends without the digest of its model: give it.")
        self._ledger.commit_output(self._held, _output(rung, model_digest))
        if self._ledger.output(self._held) not in _outputs(rung, model_digest):
            raise ReleaseError(
                f"release '{self._release.release_id}' was made before, and chunk {rung} ended in another model: use"
                " that one, or change the recipe's seed, which is another release and another charge."
            )

    def released(self, value: Any, model_digest: str, rungs: int | None = None) -> Released[Any]:
        """The model, once its chunks are committed and the last of them for it.

        Args:
            value: the model.
            model_digest: names it.
            rungs: the first chunks, after which it is this one; all when left out. A search may stop a training.

        Raises:
            ReleaseError: a chunk is missing, or this is another model.
        """
        rungs = rungs or self._release.rungs
        if not model_digest or self._ledger.output(self._committed(rungs)) not in _outputs(rungs, model_digest):
            raise ReleaseError("the trained weights are not those that were committed: run it again with --resume.")
        return Released(value, self._release.release_id, RELEASE_SEAL)

    @property
    def is_of_version_0_1(self) -> bool:
        """Whether the finished training was made by version 0.1, whose claim does not hold in bfloat16."""
        output = self._ledger.output(self._committed(self._release.rungs))
        return output is not None and not output.startswith(_FORMAT.encode())

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
    return f"{_FORMAT}{digest_json({'rung': rung, 'model': model_digest})}".encode()


def _outputs(rung: int, model_digest: str) -> tuple[bytes, bytes]:
    """What the ledger may hold for this model: committed now, or by version 0.1."""
    output = _output(rung, model_digest)
    return output, output.removeprefix(_FORMAT.encode())
