"""The `generation` block of a recipe: how text is sampled from a model, and by which engine.

Sampling is post-processing of a released model, so that any engine may do it that draws from the model's distribution.
This file imports neither torch nor an engine.
"""

import importlib.util
from typing import Any, Literal

from pydantic import Field, field_validator

from rayprivacy.core.config import Config
from rayprivacy.core.errors import ConfigError

EngineName = Literal["transformers", "onnxruntime_float32"]
TRANSFORMERS: Literal["transformers"] = "transformers"
ONNX: EngineName = "onnxruntime_float32"
GRAPHED = "llama"  # the type of the models that it samples from
BATCH = 64  # texts that are sampled at once: more are little faster, and leave the last actor more to do alone


class SampledConfig(Config):
    """How much text is sampled from a model, and which.

    Attributes:
        texts: number of texts.
        max_tokens: new tokens at most; a text that does not end by then is cut there.
        prompt_words: the shortest and longest cut of a public prompt, in words.
        temperature, top_k, top_p: the usual filters of sampling.
    """

    texts: int = Field(default=512, ge=1)
    max_tokens: int = Field(default=24, ge=1)
    prompt_words: tuple[int, int] = (1, 4)
    temperature: float = Field(default=1.0, gt=0)
    top_k: int = Field(default=2000, ge=1)  # with 50, text is narrower than people's
    top_p: float = Field(default=0.95, gt=0, le=1)

    @field_validator("prompt_words")
    @classmethod
    def _a_range(cls, words: tuple[int, int]) -> tuple[int, int]:
        if not 0 <= words[0] <= words[1]:
            raise ValueError("give the shortest cut first, e.g. [1, 4]")
        return words


class SamplingConfig(SampledConfig):
    """How text is sampled from a model, all drawn from one seed.

    Attributes:
        seed: a public seed; sampling is not a privacy mechanism.
    """

    seed: int = 0


class WritingConfig(SamplingConfig):
    """How synthetic text is sampled from a released model.

    Attributes:
        engine: what samples; both draw from the same distribution, and each has texts of its own. `auto` is decided
            when a run begins: `onnxruntime_float32` where it is installed (the extra `fast`) and takes the base model,
            `transformers` elsewhere.
    """

    engine: Literal["auto", EngineName] = "auto"

    @property
    def decided(self) -> EngineName:
        """What samples, in a run that has begun: `auto` is decided before."""
        if self.engine == "auto":
            raise ValueError("generation.engine is 'auto' and was not decided: see rayprivacy.runs.decide")
        return self.engine


class PseudoConfig(SampledConfig):
    """How public pseudo-sentences are sampled.

    What is asked of private text depends on them, so that another engine is another release: nothing is decided by
    what is installed.

    Attributes:
        engine: the library that samples.
    """

    prompt_words: tuple[int, int] = (4, 4)
    temperature: float = Field(default=0.8, gt=0)
    top_k: int = Field(default=40, ge=1)
    top_p: float = Field(default=1.0, gt=0, le=1)
    engine: EngineName = TRANSFORMERS

    def seeded(self, seed: int) -> SamplingConfig:
        """What the sampler takes, drawn from this seed."""
        return SamplingConfig(seed=seed, **self.model_dump(exclude={"engine"}))


def best_engine(config: Any) -> EngineName:
    """The engine that `auto` stands for, given the transformers configuration of the base model."""
    return ONNX if has_onnx() and has_graph(config) else TRANSFORMERS


def has_onnx() -> bool:
    """Whether the packages of ONNX Runtime are here."""
    return all(importlib.util.find_spec(name) is not None for name in ("onnxruntime", "onnx"))


def require_engine(key: str, engine: str) -> None:
    """Refuse the engine of a recipe's key, such as `generation.engine`, that is not installed."""
    if engine not in ("auto", TRANSFORMERS) and not (engine == ONNX and has_onnx()):
        raise ConfigError(
            f"{key} is '{engine}', which is not installed: run pip install 'rayprivacy[fast]', or use '{TRANSFORMERS}'."
        )


def has_graph(config: Any) -> bool:
    """Whether ONNX Runtime samples from models of a transformers configuration: Llama without biases.

    Its attention takes heads of whole sixteens, and angles that do not depend on how long a text is.
    """
    return bool(
        config.model_type == GRAPHED
        and not (config.attention_bias or config.mlp_bias)
        and config.hidden_act == "silu"
        and config.head_dim % 16 == 0
        and config.rope_parameters["rope_type"] in ("default", "linear", "llama3")
    )
