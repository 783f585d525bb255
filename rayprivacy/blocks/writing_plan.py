"""The plan of what follows a released language model: the text that it writes, and what is measured of it."""

from dataclasses import dataclass
from typing import Any

from pydantic import Field

from rayprivacy.generation.settings import BATCH, WritingConfig
from rayprivacy.models.size import ModelSize, size_of
from rayprivacy.runs.plan import (
    EVALUATION,
    FULL,
    MODELS_MEASURED,
    TEXTS_WRITTEN,
    Block,
    Effort,
    Stage,
    Work,
    sampling_kernel,
)
from rayprivacy.runs.recipe import Recipe


class CodedWritingConfig(WritingConfig):
    """The `generation` block: `prompt_words` has no meaning here, where a text begins with its control code."""

    max_tokens: int = Field(default=64, ge=1)


@dataclass(frozen=True)
class Writing(Block):
    """A stage in which actors sample texts from a released model.

    Attributes:
        name: of the stage.
        config: how many texts there are, how long they may be, and which engine samples.
        what: the count that shows how far it is.
        reads: what the stage reads, in words.
    """

    name: str
    config: WritingConfig
    what: str = TEXTS_WRITTEN
    reads: str = "the released model"

    def stages(self, recipe: Any) -> tuple[Stage, ...]:
        """The stage."""
        config, blocks = self.config, -(-self.config.texts // BATCH)
        processes = min(recipe.resources.actors or blocks, blocks)
        flops = size_of(recipe.model.base).forward(config.texts * config.max_tokens)
        efforts = (Effort(sampling_kernel(config.engine), flops, processes=processes, threads=False),)
        detail = f"{config.texts} texts of {config.max_tokens} tokens at most"
        return (Stage(self.name, self.reads, detail, work=(Work(self.what, config.texts),), efforts=efforts),)


def measuring_stage(
    recipe: Recipe, size: ModelSize, tokens: int, models: int, others: tuple[Effort, ...] = ()
) -> Stage:
    """The stage in which models are measured on held-out private text, of records of `tokens` tokens at most."""
    read = recipe.evaluation.users * (recipe.corpus.max_records_per_user or 1) * tokens * FULL
    efforts = (Effort("encode", size.forward(models * read)), *others)
    return Stage(EVALUATION, "held-out private text", work=(Work(MODELS_MEASURED, models),), efforts=efforts)
