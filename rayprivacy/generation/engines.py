"""Engines that sample text: which are installed, which takes a model, and what `auto` means.

Sampling is post-processing of a released model, so that any engine may do it that draws from the model's distribution.
This file imports neither torch nor an engine.
"""

import importlib.util
from typing import Any

from rayprivacy.core.errors import ConfigError
from rayprivacy.generation.settings import FIRST_ENGINE, EngineName

PRECISIONS = {"ctranslate2": "int8", "ctranslate2_float32": "float32"}
MODEL_TYPES = ("gpt2", "llama")  # tests compare each with transformers
BEST: EngineName = "ctranslate2_float32"  # int8 is faster, but another distribution: see benchmarks/results
_INSTALLED_BY = {"ctranslate2": "'rayprivacy[fast]'", "vllm": "vllm"}


def best_engine(config: Any) -> EngineName:
    """The engine that `auto` stands for, given the transformers configuration of the base model."""
    return BEST if is_installed(BEST) and converts(config) else FIRST_ENGINE


def is_installed(engine: str) -> bool:
    """Whether an engine's package is here."""
    return engine == FIRST_ENGINE or importlib.util.find_spec(_package(engine)) is not None


def require_engine(key: str, engine: str) -> None:
    """Refuse an engine that is not installed.

    Args:
        key: of the recipe, such as `generation.engine`.
        engine: its value.

    Raises:
        ConfigError: its package is missing.
    """
    if engine != "auto" and not is_installed(engine):
        raise ConfigError(
            f"{key} is '{engine}', which is not installed: run pip install {_INSTALLED_BY[_package(engine)]}, or use"
            f" '{FIRST_ENGINE}'."
        )


def converts(config: Any) -> bool:
    """Whether CTranslate2 takes models of a transformers configuration.

    It works out the width of a head from the rest: a model that has another one would come out wrong.
    """
    if config.model_type not in MODEL_TYPES:
        return False
    heads = config.num_attention_heads
    return bool((getattr(config, "head_dim", None) or config.hidden_size // heads) * heads == config.hidden_size)


def _package(engine: str) -> str:
    return engine.removesuffix("_float32")
