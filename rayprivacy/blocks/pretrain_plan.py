"""The plan of a recipe's `pretrain` block: its key, and a stage that reads public text and charges nothing.

Imports neither torch nor Ray.
"""

from pathlib import Path
from typing import Any, Self

from rayprivacy.core import errors, files, private
from rayprivacy.corpus.public import load_prompts, public_texts
from rayprivacy.models.settings import LEAST_TEXTS, OF_OWN_TEXTS, ModelConfig, PretrainConfig
from rayprivacy.models.size import size_of
from rayprivacy.runs.assumptions import Placed, Where, at
from rayprivacy.runs.directory import INPUTS
from rayprivacy.runs.plan import Block, Effort, Stage, Work, sampling_kernel
from rayprivacy.runs.recipe import Recipe

PRETRAINING, PRETRAINING_STEPS, OWN_TEXTS = "pretraining", "pretraining_steps", "own_texts_written"
BLOCK = "pretrain"
HELD_ROWS = 64  # whose loss is measured before and after, at most
_PUBLIC = (
    "The text on which the base model was trained first (pretrain.source) is public, and was not taken from the corpus."
)
_OWN = (
    "The text on which the base model was trained first was written by that model; the prompts before it"
    " (pretrain.prompts) are public, and were not taken from the corpus."
)


class PretrainedRecipe(Recipe):
    """A recipe with a `pretrain` block.

    Attributes:
        pretrain: how the base model is trained on public text, before private text is read; None leaves it as it is.
    """

    pretrain: PretrainConfig | None = None

    def on_its_base(self, root: Path) -> Self:
        """The recipe of a finished run with the model that it pretrained as its base, and nothing to pretrain."""
        if self.pretrain is None:
            return self
        inputs = files.read_json(root / "public" / INPUTS)
        folder = pretrained_folder(root.absolute(), inputs["base_model"], self.pretrain, inputs["pretraining_text"])
        model = ModelConfig(base=str(folder), dtype=self.model.dtype)
        return self.model_copy(update={"model": model, "pretrain": None})


class Pretrain(Block):
    """The training of the base model on public text; nothing without the `pretrain` block."""

    def stages(self, recipe: PretrainedRecipe) -> tuple[Stage, ...]:
        """The stage, whose base writes its own texts where it is given prompts."""
        config = recipe.pretrain
        if config is None:
            return ()
        size, tokens = size_of(recipe.model.base), config.steps * config.batch * config.max_tokens
        measured, written = 2 * HELD_ROWS * config.max_tokens, config.texts * config.tokens_written
        detail = f"{config.steps} steps of {config.batch} rows of {config.max_tokens} tokens, all weights"
        work = [Work(PRETRAINING_STEPS, config.steps)]
        efforts = [Effort("train", size.trained(tokens)), Effort("encode", size.forward(measured))]
        if config.prompts:
            assert recipe.generation is not None, "an engine writes behind the prompts"
            engine: Any = recipe.generation
            detail += f", on {config.texts} texts that the base model writes"
            work.insert(0, Work(OWN_TEXTS, config.texts))
            efforts.append(Effort(sampling_kernel(engine.engine), size.forward(written)))
        return (Stage(PRETRAINING, "public text", detail, work=tuple(work), efforts=tuple(efforts)),)

    def assumptions(self, recipe: PretrainedRecipe) -> tuple[Placed, ...]:
        """That the text is public."""
        config = recipe.pretrain
        return () if config is None else at(Where.PRETRAINING, _OWN if config.prompts else _PUBLIC)

    def check(self, recipe: PretrainedRecipe) -> None:
        """Refuse public text or prompts that cannot be read, or are too few."""
        config = recipe.pretrain
        if config is not None and config.prompts:
            load_prompts(config.prompts)
        elif config is not None:
            texts_of(config)


def pretrained_folder(root: Path, base: str, config: PretrainConfig, text: str) -> Path:
    """Where a run keeps its pretrained model: named by base, settings and text, the last two by their digests."""
    of_text = {"source", "text", "prompts", "texts", *OF_OWN_TEXTS}
    settings = config.model_dump(mode="json", exclude=of_text)
    return root / "public" / f"pretrained-{private.digest_json([base, settings, text])[:16]}"


def texts_of(config: PretrainConfig) -> list[str]:
    """The public texts of a block with a source, which are refused if they are too few."""
    assert config.source is not None, "a block with a source"
    texts = public_texts(config.source, config.text, BLOCK)
    if len(texts) < LEAST_TEXTS:
        raise errors.ConfigError(
            f"pretrain.source has {len(texts)} texts that are not empty: give at least {LEAST_TEXTS}, or remove"
            " 'pretrain'."
        )
    return texts
