"""The plan of eDP-SGD: one charged training, with the paper's own epsilon beside ours where micro-batches are clipped.

The paper takes a multiplier z as effective that is not: the clipped mean of a micro-batch moves by 2C, and noise is
split over N workers, so that the same noise has the multiplier z / (2 sqrt N) (`accounting.schedule`).
"""

import math
from collections.abc import Mapping
from typing import Any

from rayprivacy.accounting import published
from rayprivacy.accounting.schedule import DecayingNoise
from rayprivacy.blocks import steps_plan, writing_plan
from rayprivacy.methods.edp_sgd.recipe import EdpSgdRecipe
from rayprivacy.release.step_mechanism import NoisySteps
from rayprivacy.runs.assumptions import Where, at
from rayprivacy.runs.plan import Effort, Plan
from rayprivacy.tagging.settings import tagger_size

STEPS = "DP-SGD"
REFERENCE_BATCH = 32  # rows of a step of the non-private reference
_SAYS = (
    *at(
        Where.PUBLIC,
        "The lists of intents and slots, sampling rate, batch size, steps and clipping norm are public, and so is the "
        "base model; none was chosen by looking at the corpus.",
    ),
    *at(
        Where.RELEASED,
        "The tagger left the private side, and nothing else; metrics marked 'releasable: false' are not part of the "
        "claim.",
    ),
)


class _TaggerSteps(steps_plan.Steps):
    """The training, and what the paper says of its noise."""

    def facts(self, recipe: EdpSgdRecipe) -> Mapping[str, Any]:
        """Those of any training, and the published figure."""
        return {**super().facts(recipe), "as_published": as_published(self.mechanism, recipe.privacy.delta)}


def plan_run(recipe: EdpSgdRecipe) -> Plan:
    """The plan of a recipe."""
    tags, heads_alone = recipe.model.tags, recipe.adapter.kind == "full" and recipe.model.trained == "heads"
    size, tokens = tagger_size(recipe.model, heads_alone=heads_alone), recipe.training.max_tokens
    reference = recipe.evaluation.nonprivate_steps  # of a tagger that is trained without noise, to be measured
    training = (Effort("train", size.trained(REFERENCE_BATCH * reference * tokens)),)
    measuring = writing_plan.measuring_stage(recipe, size, tokens, 2 + bool(reference), training)
    detail = f"{recipe.training.steps} steps, {len(tags.all_intents)} intents, {len(tags.slots)} slots"
    steps = _TaggerSteps(STEPS, recipe.training, detail, size)
    return Plan.of(recipe, steps, says=_SAYS, measuring=measuring)


def as_published(mechanism: NoisySteps, delta: float) -> dict[str, float]:
    """What the paper would state for the same noise, by its label; nothing where users are clipped, as it does not."""
    workers = mechanism.microbatches
    if workers is None:
        return {}
    noise = DecayingNoise(mechanism.schedule, mechanism.steps, workers, q=mechanism.sampling_rate)
    stated = published.edpsgd(noise.as_printed(2 * math.sqrt(workers) * mechanism.noise_multiplier), delta)
    return {stated.label: stated.epsilon}
