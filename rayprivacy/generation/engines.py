"""Engines that sample text: whether one is installed, whether it takes a model, and what `auto` means.

Sampling is post-processing of a released model, so that any engine may do it that draws from the model's distribution.
This file imports neither torch nor an engine.
"""

import importlib.util
from typing import Any

from rayprivacy.core.errors import ConfigError
from rayprivacy.generation.settings import FIRST_ENGINE, EngineName

ONNX: EngineName = "onnxruntime_float32"
ROPES = ("default", "linear", "llama3")  # whose angles do not depend on how long a text is
_PACKAGES = ("onnxruntime", "onnx")


def best_engine(config: Any) -> EngineName:
    """The engine that `auto` stands for, given the transformers configuration of the base model."""
    return ONNX if has_onnx() and has_graph(config) else FIRST_ENGINE


def has_onnx() -> bool:
    """Whether the packages of ONNX Runtime are here."""
    return all(importlib.util.find_spec(name) is not None for name in _PACKAGES)


def require_engine(key: str, engine: str) -> None:
    """Refuse an engine that is not installed.

    Args:
        key: of the recipe, such as `generation.engine`.
        engine: its value.

    Raises:
        ConfigError: its package is missing.
    """
    if engine not in ("auto", FIRST_ENGINE) and not (engine == ONNX and has_onnx()):
        raise ConfigError(
            f"{key} is '{engine}', which is not installed: run pip install 'rayprivacy[fast]', or use '{FIRST_ENGINE}'."
        )


def has_graph(config: Any) -> bool:
    """Whether `onnx_graph` writes models of a transformers configuration; its attention takes heads of whole sixteens.

    Llama models without biases have one; others, such as GPT-2, are sampled by transformers.
    """
    return bool(
        config.model_type == "llama"
        and not (config.attention_bias or config.mlp_bias)
        and config.hidden_act == "silu"
        and config.head_dim % 16 == 0
        and config.rope_parameters["rope_type"] in ROPES
    )
