"""Stages that methods with a language model share: text that a released model writes, and what is measured of it."""

from rayprivacy.generation.settings import BATCH, WritingConfig
from rayprivacy.models.size import ModelSize, size_of
from rayprivacy.runs.effort import FULL, Effort, sampling_kernel
from rayprivacy.runs.plan import EVALUATION, MODELS_MEASURED, TEXTS_WRITTEN, Stage, Work
from rayprivacy.runs.recipe import Recipe


def writing_stage(
    name: str,
    base: str,
    config: WritingConfig,
    actors: int,
    what: str = TEXTS_WRITTEN,
    reads: str = "the released model",
) -> Stage:
    """The stage in which actors sample texts.

    Args:
        name: of the stage.
        base: as in `model.base`.
        config: how many texts there are, how long they may be, and which engine samples.
        actors: as in `resources.actors`.
        what: the count that shows how far it is.
        reads: what the stage reads, in words.
    """
    blocks, flops = -(-config.texts // BATCH), size_of(base).forward(config.texts * config.max_tokens)
    processes = min(actors or blocks, blocks)
    efforts = (Effort(sampling_kernel(config.engine), flops, processes=processes, threads=False),)
    detail = f"{config.texts} texts of {config.max_tokens} tokens at most"
    return Stage(name, reads, detail, work=(Work(what, config.texts),), efforts=efforts)


def measuring_stage(
    recipe: Recipe, size: ModelSize, tokens: int, models: int, others: tuple[Effort, ...] = ()
) -> Stage:
    """The stage in which models are measured on held-out private text.

    Args:
        recipe: the recipe.
        size: of the models.
        tokens: of a record, at most.
        models: how many there are.
        others: what else the stage computes.
    """
    read = recipe.evaluation.users * (recipe.corpus.max_records_per_user or 1) * tokens * FULL
    efforts = (Effort("encode", size.forward(models * read)), *others)
    return Stage(EVALUATION, "held-out private text", work=(Work(MODELS_MEASURED, models),), efforts=efforts)
