"""The `judge` block of questions: what judges whether a passage supports an answer. It imports no torch."""

from typing import ClassVar

from pydantic import Field

from rayprivacy.core.config import Config


class JudgeConfig(Config):
    """How the judge of answers is trained; all that it reads is released or public.

    Attributes:
        encoder: a BERT whose judgement is stacked on what words tell; null leaves words alone.
        epochs: over the claims that the encoder learns from.
        learning_rate: of the encoder.
        batch: claims of one step of the encoder.
        max_tokens: of a claim with the sentences that are nearest to it, which is all that the encoder reads.
    """

    named: ClassVar[str] = "judge"

    encoder: str | None = "minilm-l6"
    epochs: int = Field(default=2, ge=1)
    learning_rate: float = Field(default=1e-4, gt=0)
    batch: int = Field(default=32, ge=1)
    max_tokens: int = Field(default=96, ge=16)
