"""The plan of eDP-SGD: one charged training, with the paper's own epsilon beside ours where micro-batches are clipped.

The paper takes a multiplier z as effective that is not: the clipped mean of a micro-batch moves by 2C, and noise is
split over N workers, so that the same noise has the multiplier z / (2 sqrt N) (`accounting.decay`).
"""

import math

from rayprivacy.accounting import published
from rayprivacy.accounting.decay import DecayingNoise
from rayprivacy.methods.edp_sgd.recipe import EdpSgdRecipe
from rayprivacy.models.size import ModelSize, tagger_size
from rayprivacy.release.step_mechanism import NoisySteps
from rayprivacy.runs.assumptions import OF_UNIT, TIMING, of_training
from rayprivacy.runs.effort import Effort
from rayprivacy.runs.model_stages import measuring_stage
from rayprivacy.runs.plan import Plan, Stage, training_stage
from rayprivacy.runs.sampled_steps import (
    PART_FILES,
    guessed_users,
    noise_figures,
    noise_line,
    sampled_steps,
    steps_efforts,
)

STEPS = "DP-SGD"
REFERENCE_BATCH = 32  # rows of a step of the non-private reference


def plan_run(recipe: EdpSgdRecipe) -> Plan:
    """The plan of a recipe.

    Raises:
        ConfigError: no noise is enough for the budget.
    """
    training, mechanism = recipe.training, sampled_steps(recipe.training, recipe.privacy)
    tags = recipe.model.tags
    detail = f"{mechanism.steps} steps, {len(tags.all_intents)} intents, {len(tags.slots)} slots"
    efforts = steps_efforts(_size(recipe), training, recipe.resources)
    return Plan(
        stages=(training_stage(STEPS, detail, mechanism, training.chunk, efforts),),
        protection=mechanism.protection,
        noise=noise_line(mechanism, training),
        assumptions=_assumptions(recipe),
        shards=PART_FILES,
        figures=noise_figures(steps=mechanism),
        as_published=as_published(mechanism, recipe.privacy.delta),
        users=guessed_users(training),
        measuring=_measuring(recipe),
    )


def _size(recipe: EdpSgdRecipe) -> ModelSize:
    return tagger_size(recipe.model, heads_alone=recipe.adapter.kind == "full" and recipe.model.trained == "heads")


def as_published(mechanism: NoisySteps, delta: float) -> dict[str, float]:
    """What the paper would state for the same noise, by its label; nothing where users are clipped, as it does not."""
    workers = mechanism.microbatches
    if workers is None:
        return {}
    noise = DecayingNoise(mechanism.schedule, mechanism.steps, workers, q=mechanism.sampling_rate)
    stated = published.edpsgd(noise.as_printed(2 * math.sqrt(workers) * mechanism.noise_multiplier), delta)
    return {stated.label: stated.epsilon}


def _measuring(recipe: EdpSgdRecipe) -> Stage:
    """The untrained tagger, the released one, and the non-private reference, which is trained first."""
    size, tokens, steps = _size(recipe), recipe.training.max_tokens, recipe.evaluation.nonprivate_steps
    training = (Effort("train", size.trained(REFERENCE_BATCH * steps * tokens)),)
    return measuring_stage(recipe, size, tokens, 2 + bool(steps), training)


def _assumptions(recipe: EdpSgdRecipe) -> tuple[str, ...]:
    unit = recipe.privacy.unit
    return (
        *OF_UNIT[unit],
        "The lists of intents and slots, sampling rate, batch size, steps and clipping norm are public, and so is the "
        "base model; none was chosen by looking at the corpus.",
        "The tagger left the private side, and nothing else; metrics marked 'releasable: false' are not part of the "
        "claim.",
        *of_training(unit, recipe.training.bands, recipe.training.microbatches),
        TIMING,
    )
