"""The plan of two-stage generation: two trainings with DP-SGD on the same users, calibrated together, then writing."""

from rayprivacy.accounting import published
from rayprivacy.generation.settings import BATCH
from rayprivacy.methods.two_stage.recipe import TwoStageRecipe
from rayprivacy.models.size import size_of
from rayprivacy.release.step_mechanism import SampledGaussian
from rayprivacy.runs.assumptions import OF_UNIT, TIMING, of_training
from rayprivacy.runs.effort import FULL, Effort
from rayprivacy.runs.plan import (
    EVALUATION,
    MODELS_MEASURED,
    TEXTS_WRITTEN,
    Plan,
    Stage,
    Work,
    training_stage,
)
from rayprivacy.runs.pretrain_plan import pretrain_assumptions, pretrain_stages
from rayprivacy.runs.sampled_steps import PART_FILES, guessed_users, noise_line, sampled_trainings, steps_efforts

PARSES, UTTERANCES = "training on parse trees", "training on utterances"
TREES, WRITING = "synthetic parse trees", "synthetic text"
TREES_WRITTEN = "trees_written"


def planned_trainings(recipe: TwoStageRecipe) -> dict[str, SampledGaussian]:
    """The mechanism of each stage, with the least noise with which both together fit the budget.

    Raises:
        ConfigError: no noise is enough.
    """
    trainings = [recipe.training_of("trees"), recipe.training_of("utterances")]
    ratios = (recipe.stages.sigma_ratio, 1.0)
    return dict(zip((PARSES, UTTERANCES), sampled_trainings(trainings, ratios, recipe.privacy), strict=True))


def plan_run(recipe: TwoStageRecipe) -> Plan:
    """The plan of a recipe.

    Raises:
        ConfigError: no noise is enough for the budget.
    """
    mechanisms = planned_trainings(recipe)
    parse, utterance = recipe.training_of("trees"), recipe.training_of("utterances")
    noise = [noise_line(mechanisms[PARSES], parse), noise_line(mechanisms[UTTERANCES], utterance)]
    return Plan(
        stages=(
            *pretrain_stages(recipe.pretrain, recipe.model.base),
            _training(recipe, "trees", PARSES, mechanisms[PARSES]),
            _training(recipe, "utterances", UTTERANCES, mechanisms[UTTERANCES]),
            _writing(recipe, TREES, TREES_WRITTEN, recipe.parses.max_tokens),
            _writing(recipe, WRITING, TEXTS_WRITTEN, recipe.generation.max_tokens),
        ),
        protection=mechanisms[PARSES].protection,
        noise=f"trees: {noise[0]}; utterances: {noise[1]}",
        assumptions=_assumptions(recipe),
        as_published=_as_published(recipe, mechanisms),
        shards=PART_FILES,
        users=guessed_users(utterance),
        measuring=_measuring(recipe),
    )


def _training(recipe: TwoStageRecipe, stage: str, name: str, mechanism: SampledGaussian) -> Stage:
    training = recipe.training_of(stage)
    detail = f"{mechanism.steps} steps on {recipe.corpus.source}, {recipe.adapter.kind}"
    tree = round(FULL * recipe.parses.max_tokens)
    tokens = tree if stage == "trees" else tree + training.max_tokens  # the tree in front is read as well
    efforts = steps_efforts(recipe.model.base, training.model_copy(update={"max_tokens": tokens}), recipe.resources)
    return training_stage(name, detail, mechanism, training.chunk, efforts)


def _writing(recipe: TwoStageRecipe, name: str, what: str, tokens: int) -> Stage:
    size, config = size_of(recipe.model.base), recipe.generation
    blocks = -(-config.texts // BATCH)
    processes = min(recipe.resources.actors or blocks, blocks)
    known = size is not None and config.engine != "vllm"
    flops = size.forward(config.texts * tokens) if size else 0.0
    efforts = (Effort("decode", flops, processes=processes, threads=False),) if known else None
    detail = f"{config.texts} texts of {tokens} tokens at most"
    return Stage(name, "the released models", detail, work=(Work(what, config.texts),), efforts=efforts)


def _measuring(recipe: TwoStageRecipe) -> Stage:
    """Trees and utterances under the base, what it became by pretraining, and the released models."""
    size, models = size_of(recipe.model.base), 2 + bool(recipe.pretrain)
    tokens = 2 * recipe.parses.max_tokens + recipe.training.max_tokens
    read = recipe.evaluation.users * (recipe.corpus.max_records_per_user or 1) * tokens * FULL
    efforts = (Effort("encode", size.forward(models * read)),) if size else None
    return Stage(EVALUATION, "held-out private text", work=(Work(MODELS_MEASURED, models),), efforts=efforts)


def _as_published(recipe: TwoStageRecipe, mechanisms: dict[str, SampledGaussian]) -> dict[str, float]:
    """Epsilon as the paper states it, and that of its shuffled batches without amplification; none with bands."""
    if recipe.training.bands > 1:
        return {}
    stages = [(each.sampling_rate, each.noise_multiplier, each.steps) for each in mechanisms.values()]
    figures = published.two_stage_together(stages, recipe.privacy.delta)
    return {figure.label: round(figure.epsilon, 3) for figure in figures}


def _assumptions(recipe: TwoStageRecipe) -> tuple[str, ...]:
    unit = recipe.privacy.unit
    grammar = (
        "The grammar of the trees and the list of function names (parses.functions) are public, and neither was made "
        "from the corpus.",
    )
    return (
        *OF_UNIT[unit],
        "Sampling rates, batch sizes, steps, clipping norm and bounds are public, and so is the base model; none was "
        "chosen by looking at the corpus.",
        "Both trainings read the same users, and the claim is about both together; the parse trees come from a column "
        "of the corpus, and each is a function of its own record.",
        *pretrain_assumptions(recipe.pretrain),
        *(grammar if recipe.parses.grammar else ()),
        "The two models left the private side, and nothing else; metrics marked 'releasable: false' are not part of "
        "the claim.",
        *of_training(unit, recipe.training.bands),
        TIMING,
    )
