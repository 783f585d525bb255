"""The `generation` block of a recipe: how text is sampled from a model, and by which engine."""

from typing import Any, Literal, cast

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from rayprivacy.core.config import Config

EngineName = Literal["transformers", "onnxruntime_float32"]
FIRST_ENGINE: Literal["transformers"] = "transformers"
BATCH = 64  # texts that are sampled at once: more are little faster, and leave the last actor more to do alone


class SamplingConfig(Config):
    """How text is sampled from a model.

    Attributes:
        texts: number of texts.
        max_tokens: new tokens at most; a text that does not end by then is cut there.
        prompt_words: the shortest and longest cut of a public prompt, in words.
        temperature, top_k, top_p: the usual filters of sampling.
        seed: a public seed; sampling is not a privacy mechanism.
    """

    texts: int = Field(default=512, ge=1)
    max_tokens: int = Field(default=24, ge=1)
    prompt_words: tuple[int, int] = (1, 4)
    temperature: float = Field(default=1.0, gt=0)
    top_k: int = Field(default=2000, ge=1)  # with 50, text is narrower than people's
    top_p: float = Field(default=0.95, gt=0, le=1)
    seed: int = 0

    @field_validator("prompt_words")
    @classmethod
    def _a_range(cls, words: tuple[int, int]) -> tuple[int, int]:
        if not 0 <= words[0] <= words[1]:
            raise ValueError("give the shortest cut first, e.g. [1, 4]")
        return words


class WritingConfig(SamplingConfig):
    """How synthetic text is sampled from a released model.

    Attributes:
        engine: what samples; both draw from the same distribution, and each has texts of its own. `auto` is decided
            when a run begins: `onnxruntime_float32` where it is installed (the extra `fast`) and takes the base model,
            `transformers` elsewhere.
    """

    engine: Literal["auto"] | EngineName = "auto"


def settled(engine: str) -> EngineName:
    """The engine of a run that has begun: `auto` was decided then, and is the first engine where it was not."""
    return FIRST_ENGINE if engine == "auto" else cast(EngineName, engine)


class PseudoConfig(SamplingConfig):
    """How public pseudo-sentences are sampled.

    What is asked of private text depends on them, so that another engine is another release. Hence nothing is decided
    by what is installed, and the engine that there always was stays out of the release id.

    Attributes:
        engine: the library that samples.
    """

    prompt_words: tuple[int, int] = (4, 4)
    temperature: float = Field(default=0.8, gt=0)
    top_k: int = Field(default=40, ge=1)
    top_p: float = Field(default=1.0, gt=0, le=1)
    engine: EngineName = FIRST_ENGINE

    @model_serializer(mode="wrap")
    def _without_the_first_engine(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = handler(self)
        return {name: value for name, value in written.items() if (name, value) != ("engine", FIRST_ENGINE)}
