"""What the plan says of a recipe's `pretrain` block: a stage that reads public text and charges nothing.

Imports neither torch nor Ray: a plan needs it.
"""

from rayprivacy.core.errors import ConfigError
from rayprivacy.corpus.public_texts import public_texts
from rayprivacy.models.settings import PretrainConfig
from rayprivacy.models.size import size_of
from rayprivacy.runs.effort import Effort
from rayprivacy.runs.plan import Stage, Work

PRETRAINING, PRETRAINING_STEPS = "pretraining", "pretraining_steps"
BLOCK = "pretrain"
HELD_ROWS = 64  # whose loss is measured before and after, at most
LEAST_TEXTS = 10
_PUBLIC = (
    "The text on which the base model was trained first (pretrain.source) is public, and was not taken from the corpus."
)


def pretrain_stages(config: PretrainConfig | None, base: str) -> tuple[Stage, ...]:
    """The stage of pretraining; none without the block.

    Args:
        config: the block of the recipe.
        base: of the model block.
    """
    if config is None:
        return ()
    size, tokens = size_of(base), config.steps * config.batch * config.max_tokens
    measured = 2 * HELD_ROWS * config.max_tokens
    efforts = (Effort("train", size.trained(tokens)), Effort("encode", size.forward(measured))) if size else None
    detail = f"{config.steps} steps of {config.batch} rows of {config.max_tokens} tokens, all weights"
    return (Stage(PRETRAINING, "public text", detail, work=(Work(PRETRAINING_STEPS, config.steps),), efforts=efforts),)


def pretrain_assumptions(config: PretrainConfig | None) -> tuple[str, ...]:
    """What the claim rests on with this block."""
    return () if config is None else (_PUBLIC,)


def check_pretrain(config: PretrainConfig | None) -> None:
    """Refuse public text that cannot be used.

    Raises:
        ConfigError: it cannot be read, or has too few texts.
    """
    if config is not None:
        texts_of(config)


def texts_of(config: PretrainConfig) -> list[str]:
    """The public texts.

    Raises:
        ConfigError: they cannot be read, or are too few.
    """
    texts = public_texts(config.source, config.text, BLOCK)
    if len(texts) < LEAST_TEXTS:
        raise ConfigError(
            f"pretrain.source has {len(texts)} texts that are not empty: give at least {LEAST_TEXTS}, or remove"
            " 'pretrain'."
        )
    return texts
