"""The plan of two-stage generation: two trainings with DP-SGD on the same users, calibrated together, then writing."""

from rayprivacy.accounting import published
from rayprivacy.methods.two_stage.recipe import TwoStageRecipe
from rayprivacy.models.size import size_of
from rayprivacy.release.step_mechanism import NoisySteps
from rayprivacy.runs.assumptions import OF_UNIT, TIMING, of_training
from rayprivacy.runs.effort import FULL, Effort
from rayprivacy.runs.model_stages import measuring_stage, writing_stage
from rayprivacy.runs.plan import Plan, Stage, Work, training_stage
from rayprivacy.runs.pretrain_plan import pretrain_assumptions, pretrain_stages
from rayprivacy.runs.sampled_steps import (
    PART_FILES,
    guessed_users,
    noise_figures,
    noise_line,
    sampled_trainings,
    steps_efforts,
)

PARSES, UTTERANCES = "training on parse trees", "training on utterances"
TREES, WRITING = "synthetic parse trees", "synthetic text"
TREES_WRITTEN = "trees_written"
PARSER, PARSER_STEPS = "parser", "parser_steps"
PARSING, PARTS_PARSED = "parse trees of private text", "parts_parsed"


def planned_trainings(recipe: TwoStageRecipe) -> dict[str, NoisySteps]:
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
    base = recipe.model.base
    noise = [noise_line(mechanisms[PARSES], parse), noise_line(mechanisms[UTTERANCES], utterance)]
    return Plan(
        stages=(
            *pretrain_stages(recipe.pretrain, recipe.model.base, recipe.generation.engine),
            *_parser_stages(recipe),
            _training(recipe, "trees", PARSES, mechanisms[PARSES]),
            _training(recipe, "utterances", UTTERANCES, mechanisms[UTTERANCES]),
            writing_stage(
                TREES, base, recipe.tree_writing, recipe.resources.actors, TREES_WRITTEN, "the released models"
            ),
            writing_stage(WRITING, base, recipe.generation, recipe.resources.actors, reads="the released models"),
        ),
        protection=mechanisms[PARSES].protection,
        noise=f"trees: {noise[0]}; utterances: {noise[1]}",
        assumptions=_assumptions(recipe),
        figures=noise_figures(trees=mechanisms[PARSES], utterances=mechanisms[UTTERANCES]),
        as_published=_as_published(recipe, mechanisms),
        shards=PART_FILES,
        users=guessed_users(utterance),
        measuring=_measuring(recipe),
    )


def _parser_stages(recipe: TwoStageRecipe) -> tuple[Stage, ...]:
    """The parser's training on public pairs, and its reading of private text; none for trees from a column."""
    config, size = recipe.parser, size_of(recipe.model.base)
    if config is None:
        return ()
    tree = round(FULL * recipe.parses.max_tokens)
    pair, records = tree + round(FULL * config.max_tokens), recipe.corpus.max_records_per_user or 1
    learning = (Effort("train", size.trained(config.steps * config.batch * pair)),)
    reading = (Effort("decode", size.forward(records * pair), users=True, processes=PART_FILES, threads=False),)
    detail = f"{config.steps} steps of {config.batch} pairs, {config.adapter.kind}"
    return (
        Stage(PARSER, "public text", detail, work=(Work(PARSER_STEPS, config.steps),), efforts=learning),
        Stage(
            PARSING,
            "private text",
            f"one record at a time, {recipe.parses.max_tokens} tokens at most",
            work=(Work(PARTS_PARSED, PART_FILES + 1),),  # and the held-out users
            efforts=reading,
        ),
    )


def _training(recipe: TwoStageRecipe, stage: str, name: str, mechanism: NoisySteps) -> Stage:
    training = recipe.training_of(stage)
    detail = f"{mechanism.steps} steps on {recipe.corpus.source}, {recipe.adapter.kind}"
    tree = round(FULL * recipe.parses.max_tokens)
    tokens = tree if stage == "trees" else tree + training.max_tokens  # the tree in front is read as well
    efforts = steps_efforts(
        size_of(recipe.model.base), training.model_copy(update={"max_tokens": tokens}), recipe.resources
    )
    return training_stage(name, detail, mechanism, training.chunk, efforts)


def _measuring(recipe: TwoStageRecipe) -> Stage:
    """Trees and utterances under the base, what it became by pretraining, and the released models."""
    tokens = 2 * recipe.parses.max_tokens + recipe.training.max_tokens
    return measuring_stage(recipe, size_of(recipe.model.base), tokens, 2 + bool(recipe.pretrain))


def _as_published(recipe: TwoStageRecipe, mechanisms: dict[str, NoisySteps]) -> dict[str, float]:
    """Epsilon as the paper states it, and that of its shuffled batches without amplification; none where noise differs
    by step or is shared.
    """
    training = recipe.training
    if training.bands > 1 or training.noise_schedule.rule.falls or training.microbatches is not None:
        return {}
    stages = [(each.sampling_rate, each.noise_multiplier, each.steps) for each in mechanisms.values()]
    figures = published.two_stage_together(stages, recipe.privacy.delta)
    return {figure.label: round(figure.epsilon, 3) for figure in figures}


def _source(recipe: TwoStageRecipe) -> str:
    if recipe.parser is None:
        return "come from a column of the corpus, and each is a function of its own record"
    return (
        "were written by a parser that learnt from public text alone (parser.source), and that reads one record at a"
        " time; which machine does so changes no bit of one record because of another"
    )


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
        f"Both trainings read the same users, and the claim is about both together; the parse trees {_source(recipe)}.",
        *pretrain_assumptions(recipe.pretrain),
        *(grammar if recipe.parses.grammar else ()),
        "The two models left the private side, and nothing else; metrics marked 'releasable: false' are not part of "
        "the claim.",
        *of_training(unit, recipe.training.bands, recipe.training.microbatches),
        TIMING,
    )
