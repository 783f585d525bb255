"""Engines that sample text: which are installed, which takes a model, and what `auto` means.

Sampling is post-processing of a released model, so that any engine may do it that draws from the model's distribution.
This file imports neither torch nor an engine.
"""

import importlib.util
from typing import Any

from rayprivacy.core.errors import ConfigError
from rayprivacy.generation.settings import FIRST_ENGINE, EngineName

ONNX: EngineName = "onnxruntime_float32"
PRECISIONS = {"ctranslate2": "int8", "ctranslate2_float32": "float32", ONNX: "float32"}  # of engines that convert
# The quickest first; int8 is quicker still, and another distribution: see benchmarks/results.
FASTEST: tuple[EngineName, ...] = (ONNX, "ctranslate2_float32")
MODEL_TYPES = ("gpt2", "llama")  # of CTranslate2; tests compare each with transformers
ROPES = ("default", "linear", "llama3")  # whose angles do not depend on how long a text is
_PACKAGES = {"ctranslate2": ("ctranslate2",), "onnxruntime": ("onnxruntime", "onnx"), "vllm": ("vllm",)}
_INSTALLED_BY = {"ctranslate2": "'rayprivacy[fast]'", "onnxruntime": "'rayprivacy[fast]'", "vllm": "vllm"}


def best_engine(config: Any) -> EngineName:
    """The engine that `auto` stands for, given the transformers configuration of the base model."""
    return next((engine for engine in FASTEST if is_installed(engine) and converts(engine, config)), FIRST_ENGINE)


def is_installed(engine: str) -> bool:
    """Whether an engine's packages are here."""
    if engine == FIRST_ENGINE:
        return True
    return all(importlib.util.find_spec(name) is not None for name in _PACKAGES[package_of(engine)])


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
            f"{key} is '{engine}', which is not installed: run pip install {_INSTALLED_BY[package_of(engine)]}, or use"
            f" '{FIRST_ENGINE}'."
        )


def converts(engine: str, config: Any) -> bool:
    """Whether a converting engine is known to take models of a transformers configuration."""
    return _is_plain_llama(config) if engine == ONNX else _goes_into_ctranslate2(config)


def _is_plain_llama(config: Any) -> bool:
    """What `onnx_graph` writes; its attention takes heads of whole sixteens."""
    return bool(
        config.model_type == "llama"
        and not (config.attention_bias or config.mlp_bias)
        and config.hidden_act == "silu"
        and config.head_dim % 16 == 0
        and config.rope_parameters["rope_type"] in ROPES
    )


def _goes_into_ctranslate2(config: Any) -> bool:
    """It works out the width of a head from the rest: a model that has another one would come out wrong."""
    if config.model_type not in MODEL_TYPES:
        return False
    heads = config.num_attention_heads
    return bool((getattr(config, "head_dim", None) or config.hidden_size // heads) * heads == config.hidden_size)


def package_of(engine: str) -> str:
    """The package whose version says what an engine makes of a model."""
    return engine.removesuffix("_float32")
