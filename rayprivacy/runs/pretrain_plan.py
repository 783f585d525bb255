"""What the plan says of a recipe's `pretrain` block: a stage that reads public text and charges nothing.

Imports neither torch nor Ray: a plan needs it.
"""

from rayprivacy.core.errors import ConfigError
from rayprivacy.corpus.prompts import load_prompts
from rayprivacy.corpus.public_texts import public_texts
from rayprivacy.models.settings import LEAST_TEXTS, PretrainConfig
from rayprivacy.models.size import size_of
from rayprivacy.runs.effort import Effort, sampling_kernel
from rayprivacy.runs.plan import Stage, Work

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


def pretrain_stages(config: PretrainConfig | None, base: str, engine: str) -> tuple[Stage, ...]:
    """The stage of pretraining; none without the block.

    Args:
        config: the block of the recipe.
        base: of the model block.
        engine: of the generation block, by which the base writes where it is given prompts.
    """
    if config is None:
        return ()
    size, tokens = size_of(base), config.steps * config.batch * config.max_tokens
    measured, written = 2 * HELD_ROWS * config.max_tokens, config.texts * config.tokens_written
    detail = f"{config.steps} steps of {config.batch} rows of {config.max_tokens} tokens, all weights"
    work = [Work(PRETRAINING_STEPS, config.steps)]
    efforts = [Effort("train", size.trained(tokens)), Effort("encode", size.forward(measured))]
    if config.prompts:
        detail += f", on {config.texts} texts that the base model writes"
        work.insert(0, Work(OWN_TEXTS, config.texts))
        efforts.append(Effort(sampling_kernel(engine), size.forward(written)))
    return (Stage(PRETRAINING, "public text", detail, work=tuple(work), efforts=tuple(efforts)),)


def pretrain_assumptions(config: PretrainConfig | None) -> tuple[str, ...]:
    """What the claim rests on with this block."""
    return () if config is None else (_OWN,) if config.prompts else (_PUBLIC,)


def check_pretrain(config: PretrainConfig | None) -> None:
    """Refuse public text or prompts that cannot be used.

    Raises:
        ConfigError: they cannot be read, or are too few.
    """
    if config is not None and config.prompts:
        load_prompts(config.prompts)
    elif config is not None:
        texts_of(config)


def texts_of(config: PretrainConfig) -> list[str]:
    """The public texts of a block with a source.

    Raises:
        ConfigError: they cannot be read, or are too few.
    """
    assert config.source is not None, "a block with a source"
    texts = public_texts(config.source, config.text, BLOCK)
    if len(texts) < LEAST_TEXTS:
        raise ConfigError(
            f"pretrain.source has {len(texts)} texts that are not empty: give at least {LEAST_TEXTS}, or remove"
            " 'pretrain'."
        )
    return texts
