"""The plan of the generator: the label histogram, and the steps of DP-SGD with the least noise that fits the budget."""

from rayprivacy.generation.codes import Codes
from rayprivacy.methods.generator.recipe import GeneratorRecipe
from rayprivacy.models.size import size_of
from rayprivacy.release.histogram import HistogramMechanism
from rayprivacy.release.step_mechanism import NoisySteps
from rayprivacy.runs.assumptions import DISCRETE_NOISE, OF_UNIT, TIMING, of_training
from rayprivacy.runs.match_plan import candidates_of, charged_margins, check_match, match_stages
from rayprivacy.runs.model_stages import measuring_stage, writing_stage
from rayprivacy.runs.plan import Plan, Stage, composed, training_stage
from rayprivacy.runs.pretrain_plan import check_pretrain, pretrain_assumptions, pretrain_stages
from rayprivacy.runs.sampled_steps import (
    PART_FILES,
    guessed_users,
    noise_figures,
    noise_line,
    sampled_steps,
    steps_efforts,
)

CODES, STEPS, WRITING = "shares of control codes", "DP-SGD", "synthetic text"


def planned_histogram(recipe: GeneratorRecipe) -> HistogramMechanism | None:
    """The release of the shares of the control codes; None where there are no codes, or all are equal."""
    if not recipe.has_histogram:
        return None
    cells = Codes(recipe.codes, recipe.corpus.labels).cells
    return HistogramMechanism(cells=cells, sigma=recipe.codes.sigma, unit=recipe.privacy.unit)


def planned_steps(recipe: GeneratorRecipe) -> NoisySteps:
    """The steps: with the recipe's noise multiplier, or the least that fits the budget beside the histogram and the
    votes of `match`.

    Raises:
        ConfigError: no noise is enough.
    """
    histogram = planned_histogram(recipe)
    margins = charged_margins(recipe)
    before = [mechanism.event for mechanism in (histogram, margins) if mechanism is not None]
    return sampled_steps(recipe.training, recipe.privacy, composed(before) if before else None)


def check_inputs(recipe: GeneratorRecipe) -> None:
    """Refuse a `match` block whose packages are missing, and public text that cannot be used.

    Raises:
        ConfigError: names what is to be installed, or the key.
    """
    check_match(recipe.match)
    check_pretrain(recipe.pretrain)


def plan_run(recipe: GeneratorRecipe) -> Plan:
    """The plan of a recipe.

    Raises:
        ConfigError: no noise is enough for the budget.
    """
    mechanism, size = planned_steps(recipe), size_of(recipe.model.base)
    texts = candidates_of(recipe.match, recipe.generation.texts)
    written = recipe.generation.model_copy(update={"texts": texts})
    return Plan(
        stages=(
            *pretrain_stages(recipe.pretrain, recipe.model.base, recipe.generation.engine),
            _codes(recipe),
            _steps(recipe, mechanism),
            writing_stage(WRITING, recipe.model.base, written, recipe.resources.actors),
            *match_stages(recipe, recipe.generation.texts, PART_FILES),
        ),
        protection=mechanism.protection,
        noise=noise_line(mechanism, recipe.training),
        assumptions=_assumptions(recipe),
        figures=noise_figures(steps=mechanism),
        shards=PART_FILES,
        users=guessed_users(recipe.training),
        measuring=measuring_stage(recipe, size, recipe.training.max_tokens, 2 + bool(recipe.pretrain)),
    )


def _codes(recipe: GeneratorRecipe) -> Stage:
    histogram, cells = planned_histogram(recipe), Codes(recipe.codes, recipe.corpus.labels).cells
    if histogram is None:
        return Stage(CODES, "nothing: all are equal", f"{cells} codes", efforts=())
    detail = f"{cells} codes, one Gaussian release of multiplier {histogram.sigma:g}"
    return Stage(CODES, "labels of private text", detail, (histogram.event,), efforts=())


def _steps(recipe: GeneratorRecipe, mechanism: NoisySteps) -> Stage:
    detail = f"{mechanism.steps} steps on {recipe.corpus.source}, {recipe.adapter.kind}"
    efforts = steps_efforts(size_of(recipe.model.base), recipe.training, recipe.resources)
    return training_stage(STEPS, detail, mechanism, recipe.training.chunk, efforts)


def _assumptions(recipe: GeneratorRecipe) -> tuple[str, ...]:
    unit = recipe.privacy.unit
    return (
        *OF_UNIT[unit],
        "Sampling rate, batch size, steps, clipping norm and the lists of label values are public, and so is the base "
        "model; none was chosen by looking at the corpus.",
        *pretrain_assumptions(recipe.pretrain),
        "The model and, where labels are used or text is matched, noisy shares left the private side, and nothing "
        "else; metrics marked 'releasable: false' are not part of the claim.",
        *of_training(unit, recipe.training.bands, recipe.training.microbatches),
        *((DISCRETE_NOISE["gaussian"],) if recipe.has_histogram or recipe.match else ()),
        TIMING,
    )
