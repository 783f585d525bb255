"""A worker of Ray Train: one rank of a training, and the job that it is given.

    for each chunk:   rank 0 reserves it in the ledger; then, on every rank, for each step of it
                          coins -> sampled users -> physical batches -> clipped sums -> noise -> optimizer
                      all ranks save their part of the state; rank 0 commits the chunk

Units are on disk, and a step reads those that it samples, while the step before it runs (`units`, `ahead`). Parts
of the corpus are dealt out to ranks, or slices of parts where there are more ranks.

A worker that dies takes the others with it; Ray Train starts them again, and they go on from the saved state. The steps
since then run again under the charges they have, with the same coins and the same noise (see `release.steps`). The
number of workers changes which rank holds which users and which part of the optimizer, and the order of sums; nothing
else.

Losses and norms of gradients are private: they leave this process in no form. A refusal is written to a file for the
driver, and all ranks stop together: a rank that merely raised would leave the others waiting.
"""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import ray.train
import torch
from ray.train.torch import get_device
from safetensors.torch import save

from rayprivacy.core.errors import ConfigError, RayPrivacyError, ReleaseError
from rayprivacy.core.files import write_atomic, write_json
from rayprivacy.core.keys import Key, load_key
from rayprivacy.core.private import Seal, digest_bytes
from rayprivacy.dpsgd import checkpoints, collectives
from rayprivacy.dpsgd.batches import ahead, physical_batches, rows
from rayprivacy.dpsgd.clipping import AnyBatch, micro_batches
from rayprivacy.dpsgd.engines.engine import Engine, StepNoise, make_engine
from rayprivacy.dpsgd.losses import RowLoss, own_losses, row_losses
from rayprivacy.dpsgd.lower_layers import LowerLayers
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.sampler import PoissonSampler
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig
from rayprivacy.dpsgd.units import Reading, UnitFile, each_unit, shares_of_rank
from rayprivacy.ledger.client import LedgerClient
from rayprivacy.ledger.service import Address
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.settings import AdapterConfig, ModelConfig
from rayprivacy.models.trainable import checkpointed, repeatable, trainable
from rayprivacy.release.steps import StepGate, StepRelease

SEAL = Seal(ReleaseError, "what was charged stays charged once, so run again with --resume")
REFUSED, PROGRESS = "refused.json", "progress"
STEPS = "steps"  # the one figure that Ray Train is told; public
T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """What a worker needs, by name and by path; holds nothing private."""

    model: ModelConfig  # the base; `adapter` says what of it is trained
    adapter: AdapterConfig
    training: DpSgdConfig  # the mechanism and the optimizer
    engine: EngineConfig  # how steps are computed
    reading: Reading  # how private rows become documents
    shards: Path  # folder of the sharded corpus, of `parts` part files
    parts: int
    key_path: Path  # file of the run's secret
    folder: Path  # where states and the trained weights are kept, by the inputs that they were computed from
    ledger: Address  # where the ledger is
    release: StepRelease  # names of what is charged and drawn
    # chunks after which to stop, for a search that looks at the model on the way; all when left out
    until: int | None = None
    # the user's own, a function that Ray can pickle; None is the model's negative log-likelihood
    loss: RowLoss | None = None
    reported: bool = False  # whether Ray Train is told after each chunk how many steps are done, for callbacks
    # of every trained parameter by name, public (`layer_scale`); none where all are alike
    scales: Mapping[str, float] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The chunk after which to stop."""
        return min(self.until or self.release.rungs, self.release.rungs)

    @property
    def states(self) -> Path:
        """The folder of saved states."""
        return self.folder / "states" / self.release.inputs[:16]

    @property
    def weights(self) -> Path:
        """The file of the trained weights."""
        return self.folder / f"trained-{self.release.inputs[:16]}-{self.last:05d}.safetensors"

    @property
    def tried(self) -> Path:
        """The file of the sentence on what was tried on public tokens before the first step."""
        return self.folder / f"tried-{self.release.inputs[:16]}.txt"


class _RefusedError(Exception):
    """A rank was refused something; the sentence is in a file."""


class Rank(NamedTuple):
    """A worker's number, from 0, how many workers there are, and how many of them are on this machine."""

    number: int
    world: int
    neighbours: int


class Paying(NamedTuple):
    """The way to the ledger and the gate of the steps, which rank 0 alone has."""

    client: LedgerClient
    gate: StepGate


class Training(NamedTuple):
    """What a rank trains with; `pad` fills batches, and `done` steps are in `state`, the newest saved one."""

    engine: Engine
    lower: LowerLayers | None  # where the states of frozen layers are kept
    sampler: PoissonSampler
    pad: int
    state: Path | None
    done: int
    paying: Paying | None


@SEAL.around("training")
def train_worker(job: Job) -> None:
    """Run the job as one rank of it."""
    context = ray.train.get_context()
    rank = Rank(context.get_world_rank(), context.get_world_size(), context.get_local_world_size())
    try:
        training = _together(job, partial(build, job, rank))
        if training.state is not None:
            training.engine.load(training.state)
        _Worker(job, training).train()
    except _RefusedError:
        return


def build(job: Job, rank: Rank) -> Training:
    """Read this rank's units, find the newest state, and make model, engine and gate; collective."""
    key = load_key(job.key_path)
    done, state = checkpoints.latest(job.states, job.release.inputs)
    if done > job.release.steps(job.last).stop:
        raise ReleaseError(
            f"chunk {job.last} of the training was passed and its model was not kept: ask for a later one."
        )
    # Ray gives a worker one thread unless told otherwise.
    torch.set_num_threads(job.engine.cpus or max(1, (os.cpu_count() or 1) // rank.neighbours))
    backbone = load_backbone(job.model)
    sampler = _sampler(job, rank, key, backbone)
    engine, lower = _engine(job, key, backbone, rank.number == 0)
    paying = None
    if rank.number == 0:
        client = LedgerClient(job.ledger, checkpoints.ledger_head(state))
        paying = Paying(client, StepGate(client, job.release))
    return Training(engine, lower, sampler, backbone.end, state, done, paying)


def _sampler(job: Job, rank: Rank, key: Key, backbone: Backbone) -> PoissonSampler:
    mechanism, reading = job.release.mechanism, job.reading
    _check_micro_batches(job, rank.world)
    reading.check(mechanism.steps, mechanism.redacted_steps)
    shares = shares_of_rank(job.parts, rank.number, rank.world)
    units = UnitFile(job.folder, each_unit(job.shards, shares, backbone, key, reading))
    stream, q, records = job.release.stream, mechanism.sampling_rate, job.training.max_records
    return PoissonSampler(key, stream, q, units, records, reading.version_of, mechanism.bands)


def _check_micro_batches(job: Job, world: int) -> None:
    """Require that micro-batches are clipped exactly where the charge is for them, and that none spans two ranks."""
    micro = job.training.microbatches
    if (job.release.mechanism.microbatches is None) is not (micro is None):
        raise ReleaseError("the steps that are charged and the training differ in whether micro-batches are clipped.")
    if micro is not None and world > job.parts:
        raise ConfigError(
            f"resources.workers is {world}, and training.microbatches lie in {job.parts} part files, each of one"
            f" worker: set resources.workers to {job.parts} at most."
        )


def _engine(job: Job, key: Key, backbone: Backbone, first: bool) -> tuple[Engine, LowerLayers | None]:
    low_precision = job.model.dtype == "bfloat16"
    model = trainable(backbone, job.adapter).to(repeatable(get_device()))
    if job.engine.gradient_checkpointing:
        model = checkpointed(model)
    noise = StepNoise(KeyedNoise(key, job.release.stream), job.release.mechanism, job.training.divisor, job.scales)
    losses = partial(own_losses, loss=job.loss) if job.loss else row_losses
    losses = partial(losses, low_precision=low_precision)

    def report(sentence: str) -> None:
        if first:
            write_atomic(job.tried, sentence.encode())

    engine = make_engine(model, job.training, noise, job.engine, losses, low_precision, report, job.loss is None)
    if not engine.in_rows or job.engine.zero == 3:  # whose ranks run each layer together
        return engine, None
    lower = LowerLayers(model, job.folder, job.engine.row_tokens(job.training), low_precision)
    return engine, lower if lower.work() else None


class _Worker:
    def __init__(self, job: Job, training: Training) -> None:
        self._job, self._training = job, training

    def train(self) -> None:
        """Run what is left, chunk by chunk."""
        release, done = self._job.release, self._training.done
        self._tell(done)  # from here on time is that of steps
        first = release.rung_of(done)  # a chunk that was saved may not have been committed
        for rung in range(first, self._job.last + 1):
            self._run(rung, done)

    def _run(self, rung: int, done: int) -> None:
        release, steps = self._job.release, self._job.release.steps(rung)
        self._pay(lambda paying: paying.gate.begin(rung))
        for step, batches in ahead(steps[max(0, done - steps.start) :], self._batches):
            lower = self._training.lower
            self._training.engine.step(step, lower.filled(batches) if lower else batches)
            if self._training.paying:
                self._training.paying.gate.keep()
            self._tell(step + 1)
            if (step + 1) % release.chunk == 0 or step + 1 == steps.stop:
                self._save(step + 1)
        digest = self._model_digest(kept=rung == self._job.last)
        self._pay(lambda paying: paying.gate.end(rung, digest))
        if self._job.reported:
            ray.train.report({STEPS: steps.stop})

    def _tell(self, done: int) -> None:
        if self._training.paying:
            write_atomic(self._job.folder / PROGRESS, str(done).encode())

    def _batches(self, step: int) -> Sequence[AnyBatch]:
        """What was sampled on this rank: in rows or batches of units, or as micro-batches where these are clipped."""
        sampler, pad, micro = self._training.sampler, self._training.pad, self._job.training.microbatches
        tokens, decay = self._job.engine.tokens_at_once, self._job.training.token_decay
        if self._training.engine.in_rows:
            return rows(sampler.sample(step), self._job.engine.row_tokens(self._job.training), pad, decay)
        if micro is None:
            return physical_batches(sampler.sample(step), tokens, pad, decay)
        return micro_batches(sampler.micro_batches(step, micro // self._job.parts), tokens, pad, decay)

    def _save(self, steps: int) -> None:
        states, inputs = self._job.states, self._job.release.inputs
        if self._training.paying:
            shutil.rmtree(states / ".saving", ignore_errors=True)
        collectives.wait()
        self._training.engine.save(checkpoints.scratch(states))
        collectives.wait()
        self._pay(lambda paying: checkpoints.publish(states, steps, paying.client.head(), inputs))

    def _model_digest(self, kept: bool) -> str:
        """The digest of the weights as they are, on rank 0, which writes them if they are to be kept; collective."""
        weights = self._training.engine.state_dict()
        if self._training.paying is None:
            return ""
        blob = save({name: tensor.contiguous() for name, tensor in weights.items()})
        if kept:
            write_atomic(self._job.weights, blob)
        return digest_bytes(blob)

    def _pay(self, act: Callable[[Paying], None]) -> None:
        paying = self._training.paying
        _together(self._job, partial(act, paying) if paying else lambda: None)


def _together(job: Job, act: Callable[[], T]) -> T:
    """Do something on every rank; when one is refused, all stop."""
    done: list[T] = []
    try:
        done.append(SEAL.around("training")(act)())
    except RayPrivacyError as error:
        write_json(job.folder / REFUSED, {"kind": type(error).__name__, "sentence": str(error)})
    if collectives.largest(int(not done), get_device()):
        raise _RefusedError
    return done[0]
