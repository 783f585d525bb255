"""Training with DP-SGD as a stage of a run: the steps are named, charged in chunks, run on Ray Train, and released.

The scales of layers, where a recipe asks for them, are made once from public inputs and kept in the public folder of
the run. A run is held to them: they are among the inputs that charges, coins and noise are named by, so that other
scales are another training with another charge.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import ray
import torch
from ray.train import RunConfig, ScalingConfig
from safetensors.torch import load_file
from torch import Tensor

from rayprivacy.blocks.steps_plan import with_learning_rate
from rayprivacy.core import errors, files, private
from rayprivacy.corpus.public import public_texts
from rayprivacy.dpsgd import batches, layer_scale, worker
from rayprivacy.dpsgd.losses import RowLoss, own_losses, row_losses
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig, LayerScaleConfig
from rayprivacy.dpsgd.train import run_training
from rayprivacy.dpsgd.units import Reading
from rayprivacy.models import save, trainable
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.release.steps import StepGate, StepRelease
from rayprivacy.runs import directory, session
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.recipe import LOCAL

SCALES = "training.layer_scale"
SCALED_TEXTS = 64  # of public text that gradients are taken of, at most


@dataclass(frozen=True)
class Training:
    """What a stage trains; all of it public. Its noisy steps are those of the plan.

    Attributes:
        reading: how private rows become documents.
        adapter: what of the base model is trained.
        settings: the optimizer, chunks and bounds, with a learning rate.
        engine: how the steps are computed.
        loss: the user's own; None is the model's negative log-likelihood.
    """

    reading: Reading
    adapter: AdapterConfig
    settings: DpSgdConfig
    engine: EngineConfig
    loss: RowLoss | None = None

    @staticmethod
    def of(recipe: Any, reading: Reading, loss: RowLoss | None = None) -> "Training":
        """What a recipe with the blocks `adapter`, `training` and `resources` trains."""
        settings = with_learning_rate(recipe.training, recipe.adapter)
        return Training(reading, recipe.adapter, settings, recipe.resources, loss)


@dataclass(frozen=True)
class RayTrain:
    """Ray Train's own settings, where the user gives them; finished steps are then reported to it, for callbacks.

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

    weights: private.Released[dict[str, torch.Tensor]]
    inputs: str


def train(context: RunContext[Any], stage: str, training: Training, ray_train: RayTrain | None = None) -> Trained:
    """Run a chunked stage of DP-SGD to its end, or to the chunk at which the run stops; or find it done.

    The corpus is sharded and the base model loaded. Every file on the way is named by the inputs that it was computed
    from. Ray Train's own settings are by default those of `training.engine`.

    Raises:
        BudgetRefusedError: a chunk was refused; what ran before it stays charged.
        ReleaseError: the release was made before, with another model.
    """
    run, recipe, mechanism = context.run, context.recipe, context.plan.stage(stage).mechanism
    with context.stage(stage):
        scales = layer_scales(context, stage, training.settings, training.adapter, training.loss)
        release = _named(context, stage, training, scales)
        job = worker.Job(
            model=context.model,
            adapter=training.adapter,
            training=training.settings,
            engine=training.engine if ray_train else that_finds_room(training.engine, recipe.resources.address),
            reading=training.reading,
            shards=context.shards,
            parts=context.plan.parts,
            key_path=context.key_path,
            folder=run.private("training"),
            ledger=session.ledger_address(recipe.privacy, watched=not run.console.quiet),
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
            progress = context.progress.steps(nominal_tokens, mechanism.steps)
            given = ray_train or RayTrain()
            run_training(job, progress, given.scaling_config, given.run_config)
            gate.released(None, private.digest_file(job.weights), job.last)
            files.write_atomic(said, job.tried.read_bytes())
            files.write_atomic(kept, job.weights.read_bytes())
        weights = gate.released(load_file(kept), private.digest_file(kept), job.last)
    context.keep_ledger_head()
    if said.exists():  # a model of before this was noted has no such sentence
        context.tried[stage] = said.read_text()
    return Trained(weights, release.inputs)


def that_finds_room(engine: EngineConfig, address: str) -> EngineConfig:
    """The engine with no more workers than a Ray of this machine alone has CPUs: others would never start."""
    if address != LOCAL:
        return engine
    cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
    return engine.model_copy(update={"workers": min(engine.workers, cpus)})


def save_trained(
    context: RunContext[Any], trained: Trained, adapter: AdapterConfig, how: str, folder: str = directory.MODEL
) -> Any:
    """Save the released model as everybody loads one, in a folder of the run directory; returns it.

    `how` is a sentence for its card on how it was trained.
    """
    assert context.backbone is not None, "load_model comes before train"
    model = trainable.trainable(context.backbone, adapter)
    model.load_state_dict(trained.weights.value, strict=False)
    plain = trainable.merged(model, context.backbone)
    context.make_way()
    save.save_model(plain, context.backbone.tokenizer, context.run.root / folder, context.recipe.release_id, how)
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
        context.plan.stage(stage).mechanism,
        training.settings.chunk,
        context.corpus.corpus_digest(context.key),
        context.backbone.digest,
        context.backbone.tokenizer_digest,
        *([private.digest_json(dict(scales))] if scales else []),
        stage=context.plan.stage(stage).name,
        central=context.plan.second.account if context.plan.second else "",
    )


def layer_scales(
    context: RunContext[Any], stage: str, settings: DpSgdConfig, adapter: AdapterConfig, loss: RowLoss | None
) -> dict[str, float]:
    """The scale of every trained parameter by name; none where the recipe has no `layer_scale` block."""
    config = settings.layer_scale
    if config is None:
        return {}
    assert context.backbone is not None, "load_model comes before train"
    texts = [] if config.source is None else public_texts(config.source, config.text, SCALES)[:SCALED_TEXTS]
    if config.source is not None and not texts:
        raise errors.ConfigError(
            f"{SCALES}.source has no text in column '{config.text}': name public text, or from 'weights'."
        )
    inputs = private.digest_json(
        [context.backbone.digest, adapter.model_dump(), settings.max_tokens, texts, config.origin]
    )
    kept = context.run.public(f"layer-scales-{inputs[:16]}.json")
    if not kept.exists():
        files.write_json(kept, _made_scales(context.backbone, config, settings, adapter, texts, loss))
    scales = {str(name): float(scale) for name, scale in files.read_json(kept).items()}
    text = f" of text with digest {private.digest_json(texts)}" if texts else ""
    context.layer_scales[stage] = f"{private.digest_json(scales)}, from {config.origin}{text}"
    return scales


def _made_scales(
    backbone: Backbone,
    config: LayerScaleConfig,
    settings: DpSgdConfig,
    adapter: AdapterConfig,
    texts: list[str],
    loss: RowLoss | None,
) -> dict[str, float]:
    model = trainable.trainable(backbone, adapter)
    if config.origin == "weights":
        return layer_scale.scales_of_weights(model)
    tokens = (np.array(backbone.document(text, settings.max_tokens), dtype=np.int32) for text in texts)
    units = [[batches.Document(ids, 1)] for ids in tokens]
    losses: Callable[[Any, batches.Batch], Tensor] = partial(own_losses, loss=loss) if loss else row_losses
    return layer_scale.scales_of_gradients(
        model, batches.packed(units, settings.max_tokens * 8, backbone.end, settings.token_decay), losses
    )
