"""Training with DP-SGD as a stage of a run: the steps are named, charged in chunks, run on Ray Train, and released."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from ray.train import RunConfig, ScalingConfig
from safetensors.torch import load_file

from rayprivacy.core.artifacts import Released, digest_file, digest_json
from rayprivacy.core.files import write_atomic
from rayprivacy.dpsgd.losses import RowLoss
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig
from rayprivacy.dpsgd.train import run_training
from rayprivacy.dpsgd.units import Reading
from rayprivacy.dpsgd.worker import Job
from rayprivacy.models.save import save_model
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.trainable import merged, trainable
from rayprivacy.release.step_mechanism import NoisySteps
from rayprivacy.release.steps import StepGate, StepRelease
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.directory import MODEL
from rayprivacy.runs.layer_scales import layer_scales
from rayprivacy.runs.ledger_service import ledger_address


@dataclass(frozen=True)
class Training:
    """What a stage trains; all of it public.

    Attributes:
        mechanism: the noisy steps that are charged.
        reading: how private rows become documents.
        adapter: what of the base model is trained.
        settings: the optimizer, chunks and bounds, with a learning rate.
        engine: how the steps are computed.
        loss: the user's own; None is the model's negative log-likelihood.
    """

    mechanism: NoisySteps
    reading: Reading
    adapter: AdapterConfig
    settings: DpSgdConfig
    engine: EngineConfig
    loss: RowLoss | None = None


@dataclass(frozen=True)
class RayTrain:
    """Ray Train's own settings, where the user gives them; it is then told how many steps are done, for callbacks.

    Attributes:
        scaling_config: workers and what each of them takes.
        run_config: name, storage, callbacks and failures.
    """

    scaling_config: ScalingConfig | None = None
    run_config: RunConfig | None = None


@dataclass(frozen=True)
class Trained:
    """A trained and released model.

    Attributes:
        weights: the trained parameters by name, float32.
        inputs: keyed digest of everything that it was trained from, for names of what is made of it.
    """

    weights: Released[dict[str, torch.Tensor]]
    inputs: str


def train(context: RunContext[Any], stage: str, training: Training, ray_train: RayTrain | None = None) -> Trained:
    """Run a stage of DP-SGD to its end, or to the chunk at which the run stops; or find it done.

    Every file on the way is named by the inputs that it was computed from.

    Args:
        context: of the run, with its corpus sharded and its base model loaded.
        stage: a chunked stage of the plan.
        training: what is trained.
        ray_train: Ray Train's own settings; by default those of `training.engine`.

    Raises:
        BudgetRefusedError: a chunk was refused; what ran before it stays charged.
        ReleaseError: the release was made before, with another model.
    """
    run, recipe = context.run, context.recipe
    with context.stage(stage):
        scales = layer_scales(context, stage, training.settings, training.adapter, training.loss)
        release = _named(context, stage, training, scales)
        job = Job(
            model=context.model,
            adapter=training.adapter,
            training=training.settings,
            engine=training.engine,
            reading=training.reading,
            shards=context.shards,
            parts=context.plan.parts,
            key_path=context.key_path,
            folder=run.private("training"),
            ledger=ledger_address(recipe.privacy, watched=not run.console.quiet),
            release=release,
            until=context.chunks_of(stage),
            loss=training.loss,
            reported=ray_train is not None,
            scales=scales,
        )
        # Kept beside what is public: another machine, whose last bits differ, could not train this model again.
        after = "" if job.last == release.rungs else f"-{job.last:05d}"
        kept = run.public(f"trained-{release.inputs[:16]}{after}.safetensors")
        said = run.public(f"tried-{release.inputs[:16]}.txt")
        gate = StepGate(context.ledger, release)
        if not kept.exists():
            nominal_tokens = training.settings.expected_batch * training.settings.max_tokens
            told = context.progress.steps(nominal_tokens, training.mechanism.steps)
            given = ray_train or RayTrain()
            run_training(job, told, given.scaling_config, given.run_config)
            gate.released(None, digest_file(job.weights), job.last)
            write_atomic(said, job.tried.read_bytes())
            write_atomic(kept, job.weights.read_bytes())
        weights = gate.released(load_file(kept), digest_file(kept), job.last)
    context.keep_ledger_head()
    if said.exists():  # a model of before this was noted has no such sentence
        context.tried[stage] = said.read_text()
    return Trained(weights, release.inputs)


def save_trained(
    context: RunContext[Any], trained: Trained, adapter: AdapterConfig, how: str, folder: str = MODEL
) -> Any:
    """Save the released model as everybody loads one, in `model/` of the run directory; returns it.

    Args:
        context: of the run, with its base model loaded.
        trained: the released weights.
        adapter: what of the base model was trained.
        how: a sentence for the card on how it was trained.
        folder: in the run directory.
    """
    assert context.backbone is not None, "load_model comes before train"
    model = trainable(context.backbone, adapter)
    model.load_state_dict(trained.weights.value, strict=False)
    plain = merged(model, context.backbone)
    context.make_way()
    save_model(plain, context.backbone.tokenizer, context.run.root / folder, context.recipe.release_id, how)
    return plain


def _named(
    context: RunContext[Any], stage: str, training: Training, scales: Mapping[str, float] | None = None
) -> StepRelease:
    recipe = context.recipe
    assert context.backbone is not None, "load_model comes before train"
    return StepRelease.of(
        context.ledger,
        recipe.privacy.account,
        recipe.release_id,
        context.key,
        training.mechanism,
        training.settings.chunk,
        context.corpus.corpus_digest(context.key),
        context.backbone.digest,
        *([digest_json(dict(scales))] if scales else []),
        stage=context.plan.identity(stage),
        central=context.plan.second.account if context.plan.second else "",
    )
