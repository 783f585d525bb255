"""The training of the user's own model as a method: its recipe, its plan, and its algorithm of one charged stage.

dataset -> users -> coins -> clipped gradients of the user's loss                    (private)
their noisy sums, step by step, charged in chunks before they run -> the model       (released)

A model that was handed over as an object is named by a digest of its weights and its tokenizer; where its copy is saved
is no part of the release. A loss of the user's own is named by its function and the digest of its source text.
"""

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rayprivacy.blocks.steps import RayTrain, Training, save_trained, train
from rayprivacy.blocks.steps_plan import SampledPrivacyConfig, Steps, check_sampled, with_learning_rate
from rayprivacy.blocks.trial import try_language_model
from rayprivacy.core.config import PathKind
from rayprivacy.core.private import digest_bytes
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.dpsgd.losses import RowLoss, row_losses
from rayprivacy.dpsgd.settings import DpSgdConfig, EngineConfig
from rayprivacy.dpsgd.units import Reading
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.size import size_of
from rayprivacy.runs.assumptions import Where, at
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.method import Card, Method, Output
from rayprivacy.runs.plan import Plan
from rayprivacy.runs.recipe import FREE, Recipe, Resources


class DatasetConfig(CorpusConfig):
    """The `corpus` block: the columns of the dataset, and how much of one user is read.

    Attributes:
        source: the dataset that was handed over.
        holdout: share of users kept aside; none, because nothing is measured on them.
    """

    source: Annotated[Literal["dataset"], PathKind.CORPUS] = "dataset"
    holdout: float = Field(0.0, ge=0.0, le=0.9)


class TrainerResources(EngineConfig, Resources):
    """The `resources` block; workers and GPUs come from the scaling config."""


class TrainerRecipe(Recipe):
    """A resolved recipe of `DPTorchTrainer`.

    Attributes:
        weights: digest of a model that was handed over, with its tokenizer; empty where `model.base` names one.
        loss: name of the user's own loss and digest of its source; empty for the negative log-likelihood.
    """

    method: Literal["trainer"] = "trainer"
    corpus: DatasetConfig = DatasetConfig()
    privacy: SampledPrivacyConfig = SampledPrivacyConfig()
    weights: str = ""
    adapter: AdapterConfig = AdapterConfig()
    training: DpSgdConfig = DpSgdConfig()
    loss: str = ""
    resources: TrainerResources = TrainerResources()

    @model_validator(mode="after")
    def _can_run(self) -> "TrainerRecipe":
        check_sampled(self)
        return self

    @property
    def release_id(self) -> str:
        """Name of the release: equal settings are the same release."""
        return self._named({**FREE, "model": {"base": True}} if self.weights else FREE)


def name_of_loss(loss: Callable[..., Any]) -> str:
    """The function's name and the digest of its source text, where there is one.

    Equal in every process, which the pickled function is not. Values that a function closes over are no part of it.
    """
    function = loss
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    try:
        source = textwrap.dedent(inspect.getsource(named))
    except (OSError, TypeError):  # typed into a plain interpreter, or compiled
        source = ""
    return f"{named.__qualname__}-{digest_bytes(source.encode())[:16]}"


STEPS = "DP-SGD"
HOW = "A language model fine-tuned with DP-SGD on private text."
PUBLIC = (
    "Sampling rate, batch size, steps, clipping norm and loss are public, and so is the base model; none was chosen by "
    "looking at the corpus."
)
RELEASED = "The model left the private side, and nothing else."
OWN_LOSS = (
    "The loss is a function of the weights and of the rows of one {unit} alone: it draws nothing at random, and keeps "
    "nothing between calls."
)
LABEL_CHARS = 64  # of a label's value; a longer one is cut, as texts are
LABEL_TOKENS = 128  # of a label's line at most: a model has positions for these, whoever is sampled
CARD = Card(
    citation="DP-SGD (Abadi et al., CCS 2016)",
    sentence="a model was fine-tuned with clipped, noisy gradients of keyed samples of private text.",
    private=(
        ("corpus", "the dataset"),
        ("users", "one id each"),
        ("sample", "by keyed coin"),
        ("gradients", "clipped"),
    ),
    released=(("model", "noisy steps"),),
)


def trainer_method(loss: RowLoss | None, ray_train: RayTrain, save_base: Callable[[], None] = lambda: None) -> Method:
    """The method of one trainer, with the user's own loss; `save_base` saves a base that was given as an object."""

    def run(context: RunContext[TrainerRecipe]) -> Output:
        recipe = context.recipe
        save_base()
        context.shard()
        context.load_model()
        settings = with_learning_rate(recipe.training, recipe.adapter)
        training = Training(reading_of(recipe), recipe.adapter, settings, recipe.resources, loss)
        save_trained(context, train(context, STEPS, training, ray_train), recipe.adapter, HOW)
        return Output()

    def try_base(recipe: TrainerRecipe, readings: Sequence[Reading]) -> Backbone:
        save_base()
        return try_language_model(recipe, readings, None if loss else row_losses)

    return Method(recipe=TrainerRecipe, card=CARD, plan=plan_training, run=run, reading=reading_of, trial=try_base)


def plan_training(recipe: TrainerRecipe) -> Plan:
    """The plan of a training: one charged stage."""
    detail = f"{recipe.training.steps} steps, {recipe.adapter.kind}"
    steps = Steps(STEPS, recipe.training, detail, size_of(recipe.model.base))
    own = (OWN_LOSS.format(unit=recipe.privacy.unit),) if recipe.loss else ()
    return Plan.of(recipe, steps, says=(*at(Where.PUBLIC, PUBLIC), *at(Where.RELEASED, RELEASED, *own)))


def reading_of(recipe: TrainerRecipe) -> Reading:
    """How a row is read: its text behind a line for each of its labels, which carries no loss."""
    labels = recipe.corpus.labels
    lines, most = partial(label_lines, labels), LABEL_TOKENS * len(labels)
    return Reading(recipe.privacy.unit, labels, lines, recipe.training.max_tokens, max_context=most)


def label_lines(labels: tuple[str, ...], row: Mapping[str, Any]) -> str:
    """A row's labels as lines `name: value`, which stand in front of its text."""
    values = {name: row[name] for name in labels if row[name] is not None}
    return "".join(f"{name}: {str(value)[:LABEL_CHARS]}\n" for name, value in values.items())
