"""The training of the user's own model as a method: its plan, and its algorithm of one charged stage.

dataset -> users -> coins -> clipped gradients of the user's loss                    (private)
their noisy sums, step by step, charged in chunks before they run -> the model       (released)
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rayprivacy.blocks.steps import RayTrain, Training, save_trained, train
from rayprivacy.blocks.steps_plan import Steps, with_learning_rate
from rayprivacy.dpsgd.losses import RowLoss
from rayprivacy.dpsgd.units import Reading
from rayprivacy.models.size import size_of
from rayprivacy.runs.assumptions import Where, at
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.method import Card, Method, Output
from rayprivacy.runs.plan import Plan
from rayprivacy.trainer.recipe import TrainerRecipe

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

    return Method(recipe=TrainerRecipe, card=CARD, plan=plan_training, run=run, reading=reading_of)


def plan_training(recipe: TrainerRecipe) -> Plan:
    """The plan of a training: one charged stage.

    Raises:
        ConfigError: no noise is enough for the budget.
    """
    detail = f"{recipe.training.steps} steps, {recipe.adapter.kind}"
    steps = Steps(STEPS, recipe.training, detail, size_of(recipe.model.base))
    own = (OWN_LOSS.format(unit=recipe.privacy.unit),) if recipe.loss else ()
    return Plan.of(recipe, steps, says=(*at(Where.PUBLIC, PUBLIC), *at(Where.RELEASED, RELEASED, *own)))


def reading_of(recipe: TrainerRecipe) -> Reading:
    """How a row is read: its text behind a line for each of its labels, which carries no loss."""
    labels = recipe.corpus.labels
    return Reading(recipe.privacy.unit, labels, partial(label_lines, labels), recipe.training.max_tokens)


def label_lines(labels: tuple[str, ...], row: Mapping[str, Any]) -> str:
    """A row's labels as lines `name: value`, which stand in front of its text."""
    values = {name: row[name] for name in labels if row[name] is not None}
    return "".join(f"{name}: {str(value)[:LABEL_CHARS]}\n" for name, value in values.items())
