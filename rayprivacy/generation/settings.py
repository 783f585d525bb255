"""The `generation` block of a recipe, and how pseudo-sentences are sampled."""

from pydantic import Field, field_validator

from rayprivacy.core.config import Config


class SamplingConfig(Config):
    """How text is sampled from a model.

    Attributes:
        texts: how many texts.
        max_tokens: new tokens at most; a text that does not end by then is cut there.
        prompt_words: the shortest and longest cut of a public prompt, in words.
        temperature, top_k, top_p: the usual sampling filters.
        seed: a public seed; sampling is not a privacy mechanism.
    """

    texts: int = Field(default=512, ge=1)
    max_tokens: int = Field(default=24, ge=1)
    prompt_words: tuple[int, int] = (1, 4)
    temperature: float = Field(default=1.0, gt=0)
    top_k: int = Field(default=50, ge=1)
    top_p: float = Field(default=0.95, gt=0, le=1)
    seed: int = 0

    @field_validator("prompt_words")
    @classmethod
    def _a_range(cls, words: tuple[int, int]) -> tuple[int, int]:
        if not 0 <= words[0] <= words[1]:
            raise ValueError("give the shortest cut first, e.g. [1, 4]")
        return words
