"""The training loop that every Ray Train worker runs.

    for each chunk:   rank 0 reserves it in the ledger; then, on every rank, for each step of it
                          coins -> sampled users -> physical batches -> clipped sums -> noise -> optimizer
                      all ranks save their part of the state; rank 0 commits the chunk

A worker that dies takes the others with it; Ray Train starts them again, and they go on from the saved state. The steps
since then run again under the charges they have, with the same coins and the same noise (see `release.steps`). How many
workers there are changes who holds which users and which part of the optimizer, and the order of sums, nothing else.

Losses and norms of gradients are private: they leave this process in no form. A refusal is written to a file for the
driver, and all ranks stop together: a rank that merely raised would leave the others waiting.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import get_device
from safetensors.torch import save

from rayprivacy.core.artifacts import digest_bytes
from rayprivacy.core.errors import RayPrivacyError, ReleaseError
from rayprivacy.core.files import write_atomic, write_json
from rayprivacy.core.keys import load_key
from rayprivacy.core.sealing import Seal
from rayprivacy.dpsgd import checkpoints
from rayprivacy.dpsgd.batches import physical_batches
from rayprivacy.dpsgd.engine import Engine, StepNoise, make_engine
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.dpsgd.noise import KeyedNoise
from rayprivacy.dpsgd.sampler import PoissonSampler
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig
from rayprivacy.dpsgd.units import Reading, read_units
from rayprivacy.ledger.client import LedgerClient
from rayprivacy.ledger.service import Address
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.settings import AdapterConfig, ModelConfig
from rayprivacy.models.trainable import checkpointed, trainable
from rayprivacy.release.steps import StepGate, StepRelease

SEAL = Seal(ReleaseError, "what was charged stays charged once, so run again with --resume")
REFUSED, PROGRESS = "refused.json", "progress"


@dataclass(frozen=True)
class Job:
    """What a worker needs, by name and by path; holds nothing private.

    Attributes:
        model, adapter: the base, and what of it is trained.
        training: the mechanism and the optimizer.
        engine: how steps are computed.
        reading: how private rows become documents.
        shards, parts: folder of the sharded corpus, and how many part files it has.
        key_path: file of the run's secret.
        folder: where states and the trained weights are kept, by the inputs that they were computed from.
        ledger: where the ledger is.
        release: names of what is charged and drawn.
        until: chunks after which to stop, for a search that looks at the model on the way; all when left out.
    """

    model: ModelConfig
    adapter: AdapterConfig
    training: DpSgdConfig
    engine: EngineConfig
    reading: Reading
    shards: Path
    parts: int
    key_path: Path
    folder: Path
    ledger: Address
    release: StepRelease
    until: int | None = None

    @property
    def last(self) -> int:
        """The chunk after which to stop."""
        return min(self.until or self.release.rungs, self.release.rungs)

    @property
    def states(self) -> Path:
        """Where the states are saved."""
        return self.folder / "states" / self.release.inputs[:16]

    @property
    def weights(self) -> Path:
        """Where the trained weights are in the end."""
        return self.folder / f"trained-{self.release.inputs[:16]}-{self.last:05d}.safetensors"


class _RefusedError(Exception):
    """A rank was refused something; the sentence is in a file."""


@SEAL.around("training")
def train_worker(job: Job) -> None:
    """Run the job as one rank of it."""
    worker = _Worker(job)
    try:
        worker.prepare()
        worker.train()
    except _RefusedError:
        return


class _Worker:
    def __init__(self, job: Job) -> None:
        context = ray.train.get_context()
        self._job, self._rank, self._world = job, context.get_world_rank(), context.get_world_size()
        self._neighbours = context.get_local_world_size()
        self._states = job.states
        self._engine: Engine
        self._sampler: PoissonSampler
        self._gate: StepGate
        self._client: LedgerClient
        self._state: Path | None = None
        self._done = 0

    def prepare(self) -> None:
        """Read this rank's users, build model and engine, and load the newest state."""
        self._together(self._read)
        if self._state is not None:
            self._engine.load(self._state)

    def _read(self) -> None:
        job, key = self._job, load_key(self._job.key_path)
        self._done, self._state = checkpoints.latest(self._states, job.release.inputs)
        if self._done > job.release.steps(job.last).stop:
            raise ReleaseError(
                f"chunk {job.last} of the training was passed and its model was not kept: ask for a later one."
            )
        # Ray gives a worker one thread unless told otherwise.
        torch.set_num_threads(job.engine.cpus or max(1, (os.cpu_count() or 1) // self._neighbours))
        backbone = load_backbone(job.model)
        mine = range(self._rank, job.parts, self._world)
        units = read_units(job.shards, mine, backbone, key, job.reading)
        stream, training, mechanism = job.release.stream, job.training, job.release.mechanism
        self._sampler = PoissonSampler(key, stream, mechanism.sampling_rate, units, training.max_records)
        self._pad, low = backbone.end, job.model.dtype == "bfloat16"
        model = trainable(backbone, job.adapter).to(get_device())
        if job.engine.gradient_checkpointing:
            model = checkpointed(model)
        noise = StepNoise(KeyedNoise(key, stream), mechanism.noise_std, training.expected_batch)
        losses = partial(row_losses, low_precision=low)
        self._engine = make_engine(model, training, noise, job.engine, losses, low_precision=low)
        if self._rank == 0:
            head = checkpoints.ledger_head(self._state)
            self._client = LedgerClient(job.ledger, head)
            self._gate = StepGate(self._client, job.release)

    def train(self) -> None:
        """Run what is left, chunk by chunk."""
        release = self._job.release
        first = max(1, -(-self._done // release.chunk))  # a chunk that was saved may not have been committed
        for rung in range(first, self._job.last + 1):
            self._alone(partial(self._begin, rung))
            for step in release.steps(rung):
                if step >= self._done:
                    self._step(step)
            if release.steps(rung).stop > self._done:
                self._save(release.steps(rung).stop)
            self._alone(partial(self._end, rung, self._model_digest(kept=rung == self._job.last)))

    def _begin(self, rung: int) -> None:
        self._gate.begin(rung)

    def _end(self, rung: int, digest: str) -> None:
        self._gate.end(rung, digest)

    def _step(self, step: int) -> None:
        sampled = self._sampler.sample(step)
        self._engine.step(step, physical_batches(sampled, self._job.engine.tokens_at_once, self._pad))
        if self._rank == 0:
            self._gate.keep()
            write_atomic(self._job.folder / PROGRESS, str(step + 1).encode())

    def _save(self, steps: int) -> None:
        if self._rank == 0:
            shutil.rmtree(self._states / ".saving", ignore_errors=True)
        dist.barrier()
        self._engine.save(checkpoints.scratch(self._states))
        dist.barrier()
        self._alone(partial(self._publish, steps))

    def _publish(self, steps: int) -> None:
        checkpoints.publish(self._states, steps, self._client.head(), self._job.release.inputs)

    def _model_digest(self, kept: bool) -> str:
        """The digest of the weights as they are, on rank 0, which writes them if they are to be kept; collective."""
        weights = self._engine.state_dict()
        if self._rank:
            return ""
        blob = save({name: tensor.contiguous() for name, tensor in weights.items()})
        if kept:
            write_atomic(self._job.weights, blob)
        return digest_bytes(blob)

    def _alone(self, act: Callable[[], object]) -> None:
        """Do something on rank 0 only, while the others wait."""
        self._together(act if self._rank == 0 else lambda: None)

    def _together(self, act: Callable[[], object]) -> None:
        """Do something on every rank; when one is refused, all stop."""
        refused = False
        try:
            SEAL.around("training")(act)()
        except RayPrivacyError as error:
            refused = True
            facts = {"kind": type(error).__name__, "sentence": str(error)}
            write_json(self._job.folder / REFUSED, facts)
        flag = torch.tensor([int(refused)], device=get_device())
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        if int(flag):
            raise _RefusedError
