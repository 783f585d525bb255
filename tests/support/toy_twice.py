"""A method with two trainings of equal settings in one release, and a third with less noise from step to step.

Its first steps read a version of each row without its last word.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from toy_method import nothing

from rayprivacy.accounting.schedule import Levels, NoiseSchedule
from rayprivacy.blocks.steps_plan import training_stage
from rayprivacy.core.units import Protection
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig
from rayprivacy.dpsgd.units import Reading
from rayprivacy.generation.settings import SamplingConfig
from rayprivacy.ledger.settings import PrivacyConfig
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.release.step_mechanism import NoisySteps
from rayprivacy.runs.assumptions import CLUSTER, OF_UNIT, TIMING, of_training
from rayprivacy.runs.method import Card, Method, Output
from rayprivacy.runs.plan import Plan, Stage
from rayprivacy.runs.recipe import Recipe, Resources

FIRST, SECOND, DECAYING, TEXT = "first training", "second training", "decaying training", "synthetic text"


class TwicePrivacy(PrivacyConfig):
    composition: Literal["rdp", "pld"] = "rdp"


class TwiceResources(EngineConfig, Resources):
    """The `resources` block."""


class TwiceRecipe(Recipe):
    """A recipe with two equal trainings, and a third whose noise and documents change by step."""

    method: Literal["toy_twice"] = "toy_twice"
    privacy: TwicePrivacy = TwicePrivacy(epsilon=20.0)
    adapter: AdapterConfig = AdapterConfig()
    training: DpSgdConfig = DpSgdConfig(
        sampling_rate=0.4, expected_batch=10, steps=4, chunk=2, max_records=2, max_tokens=12, noise_multiplier=2.0
    )
    generation: SamplingConfig = SamplingConfig(texts=8)
    resources: TwiceResources = TwiceResources(cpus=1)


@dataclass(frozen=True)
class Decaying(NoiseSchedule):
    @property
    def falls(self) -> bool:
        return True

    def levels(self, steps: int, chunk: int = 1, most: int = 0) -> Levels:
        return tuple((0.9**step, 1) for step in range(steps))


def mechanisms(recipe: TwiceRecipe) -> dict[str, NoisySteps]:
    training = recipe.training
    assert training.noise_multiplier is not None
    shape = (training.sampling_rate, training.noise_multiplier, training.clipping_norm, training.steps)
    same = NoisySteps(*shape, recipe.privacy.unit)
    return {FIRST: same, SECOND: same, DECAYING: replace(same, schedule=Decaying())}


def plan(recipe: TwiceRecipe) -> Plan:
    trainings = [training_stage(name, "", each, recipe.training.chunk) for name, each in mechanisms(recipe).items()]
    return Plan(
        stages=(*trainings, Stage(TEXT, "the released models")),
        protection=Protection(recipe.privacy.unit),
        noise="2, 2 and from 2 down",
        assumptions=(*OF_UNIT[recipe.privacy.unit], *of_training(recipe.privacy.unit), TIMING, CLUSTER),
        shards=2,
    )


def run(context: Any) -> Output | None:
    from rayprivacy.blocks.steps import Training, train
    from rayprivacy.models.save import save_model
    from rayprivacy.models.trainable import merged, trainable

    recipe = context.recipe
    context.shard()
    backbone = context.load_model()
    optimizer = recipe.training.optimizer.model_copy(update={"learning_rate": 1e-3})
    settings = recipe.training.model_copy(update={"optimizer": optimizer})
    for name in mechanisms(recipe):
        read = reading(recipe)
        read = replace(read, text=less, versions=2, version_of=late) if name == DECAYING else read
        trained = train(context, name, Training(read, recipe.adapter, settings, recipe.resources))
        weights = [tensor.numpy().tobytes() for tensor in trained.weights.value.values()]
        context.run.public(f"weights of {name}").write_bytes(b"".join(weights))
    if context.stops_early:
        return None
    with context.stage(TEXT):
        model = trainable(backbone, recipe.adapter)
        model.load_state_dict(trained.weights.value, strict=False)
        save_model(merged(model, backbone), backbone.tokenizer, context.run.root / "model", recipe.release_id, "Twice.")
        pq.write_table(pa.table({"text": ["a text"] * recipe.generation.texts}), context.run.root / METHOD.card.texts)
    return Output()


def reading(recipe: TwiceRecipe) -> Reading:
    return Reading(recipe.privacy.unit, (), nothing, recipe.training.max_tokens)


def less(row: Any, version: int) -> str:
    words = str(row["text"]).split()
    return " ".join(words if version else words[:-1])


def late(step: int) -> int:
    return int(step >= 2)


CARD = Card(
    citation="the twice trained of the tests",
    sentence="a model was trained three times.",
    private=(("corpus", "the raw text"), ("users", "one id each")),
    released=(("models", "noisy steps"), ("synthetic text", "new writing")),
)
METHOD = Method(recipe=TwiceRecipe, card=CARD, plan=plan, run=run, reading=reading)
