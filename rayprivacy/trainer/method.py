"""The training of the user's own model as a method: its plan, and its algorithm of one charged stage.

dataset -> users -> coins -> clipped gradients of the user's loss                    (private)
their noisy sums, step by step, charged in chunks before they run -> the model       (released)
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from rayprivacy.dpsgd.losses import RowLoss
from rayprivacy.dpsgd.units import Reading
from rayprivacy.models.size import size_of
from rayprivacy.runs.assumptions import OF_UNIT, TIMING, of_training
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.method import Card, Method, Output
from rayprivacy.runs.plan import Plan, training_stage
from rayprivacy.runs.sampled_steps import (
    PART_FILES,
    guessed_users,
    noise_figures,
    noise_line,
    sampled_steps,
    steps_efforts,
    with_learning_rate,
)
from rayprivacy.runs.training import RayTrain, Training, save_trained, train
from rayprivacy.trainer.recipe import TrainerRecipe

STEPS = "DP-SGD"
HOW = "A language model fine-tuned with DP-SGD on private text."
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


def trainer_method(loss: RowLoss | None, ray_train: RayTrain) -> Method:
    """The method of one trainer; without a loss of the user's own it is the model's negative log-likelihood."""

    def run(context: RunContext[TrainerRecipe]) -> Output:
        recipe = context.recipe
        context.shard()
        context.load_model()
        mechanism = sampled_steps(recipe.training, recipe.privacy)
        settings = with_learning_rate(recipe.training, recipe.adapter)
        training = Training(mechanism, reading_of(recipe), recipe.adapter, settings, recipe.resources, loss)
        trained = train(context, STEPS, training, ray_train)
        save_trained(context, trained, recipe.adapter, HOW)
        return Output()

    return Method(recipe=TrainerRecipe, card=CARD, plan=plan_training, run=run, reading=reading_of)


def plan_training(recipe: TrainerRecipe) -> Plan:
    """The plan of a training: one charged stage; ConfigError where no noise is enough for the budget."""
    training, mechanism = recipe.training, sampled_steps(recipe.training, recipe.privacy)
    detail = f"{mechanism.steps} steps, {recipe.adapter.kind}"
    efforts = steps_efforts(size_of(recipe.model.base), training, recipe.resources)
    return Plan(
        stages=(training_stage(STEPS, detail, mechanism, training.chunk, efforts),),
        protection=mechanism.protection,
        noise=noise_line(mechanism, training),
        assumptions=_assumptions(recipe),
        figures=noise_figures(steps=mechanism),
        shards=PART_FILES,
        users=guessed_users(training),
    )


def reading_of(recipe: TrainerRecipe) -> Reading:
    """How a row is read: its text behind a line for each of its labels, which carries no loss."""
    labels = recipe.corpus.labels
    return Reading(recipe.privacy.unit, labels, partial(label_lines, labels), recipe.training.max_tokens)


def label_lines(labels: tuple[str, ...], row: Mapping[str, Any]) -> str:
    """A row's labels as lines `name: value`, which stand in front of its text."""
    values = {name: row[name] for name in labels if row[name] is not None}
    return "".join(f"{name}: {str(value)[:LABEL_CHARS]}\n" for name, value in values.items())


def _assumptions(recipe: TrainerRecipe) -> tuple[str, ...]:
    unit = recipe.privacy.unit
    return (
        *OF_UNIT[unit],
        "Sampling rate, batch size, steps, clipping norm and loss are public, and so is the base model; none was "
        "chosen by looking at the corpus.",
        "The model left the private side, and nothing else.",
        *((OWN_LOSS.format(unit=unit),) if recipe.loss else ()),
        *of_training(unit, recipe.training.bands, recipe.training.microbatches),
        TIMING,
    )
