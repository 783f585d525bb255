"""The `student` block of a recipe of SeqPATE: what the student is, and how it learns."""

from typing import Any, Literal

from pydantic import Field, model_validator

from rayprivacy.core.config import Config

LEARNING_RATES = {"head": 5e-3, "lora": 2e-3}
WARM_LEARNING_RATE = 1e-3
WARM_STEPS = {"head": 60, "lora": 200}
PSEUDO_POSITIONS = 256  # at which a step of a `lora` student computes L_pseudo, at most


class StudentConfig(Config):
    """How the student is trained.

    Attributes:
        kind: `head` trains a matrix on the head, `lora` adapters in the last layers (or all).
        layers: for `lora`: how many of the last layers; all if absent.
        rank: for `lora`: rank of its matrices.
        rank_in, rank_out: for `head`: size of its matrix.
        warm_steps, warm_batch, warm_learning_rate: on pseudo-sentences, before the votes; a resolved recipe has the
            number of steps that suits the kind, where it gives none.
        steps, batch, learning_rate: on the votes; learning rates are by default ones that suit the kind.
        weight: lambda, the weight of the votes against the pseudo-sentences.
        pseudo: whether the votes are learnt together with the pseudo-sentences (L_pseudo).
        label: learn the whole `vote`, or the candidate with the most votes (`top1`).
        mix: share of the student's own distribution in what it learns from a vote.
        curriculum: begin with the queries that surprise the student least, and take in the others step by step.
        seed: public seed of the order of examples.
    """

    kind: Literal["head", "lora"] = "head"
    layers: int | None = Field(default=None, ge=1)
    rank: int = Field(default=8, ge=1)
    rank_in: int = Field(default=32, ge=1)
    rank_out: int = Field(default=128, ge=1)
    warm_steps: int = Field(default=WARM_STEPS["head"], ge=0)
    warm_batch: int = Field(default=128, ge=1)
    warm_learning_rate: float | None = Field(default=None, gt=0)
    steps: int = Field(default=300, ge=1)
    batch: int = Field(default=256, ge=1)
    learning_rate: float | None = Field(default=None, gt=0)
    weight: float = Field(default=20.0, ge=0)
    pseudo: bool = True
    label: Literal["vote", "top1"] = "vote"
    mix: float = Field(default=0.0, ge=0, lt=1)
    curriculum: bool = False
    seed: int = 0

    @property
    def step_size(self) -> float:
        """The learning rate on votes, or the default one of the kind."""
        return self.learning_rate or LEARNING_RATES[self.kind]

    @property
    def warm_step_size(self) -> float:
        """The learning rate on pseudo-sentences."""
        return self.warm_learning_rate or WARM_LEARNING_RATE

    @model_validator(mode="before")
    @classmethod
    def _warm_steps_of_the_kind(cls, data: Any) -> Any:
        kind = data.get("kind") if isinstance(data, dict) else None
        if not isinstance(kind, str) or kind not in WARM_STEPS:
            return data  # the field refuses it in a sentence, where it is no kind
        return {"warm_steps": WARM_STEPS[kind], **data}

    @model_validator(mode="after")
    def _options_of_the_kind(self) -> "StudentConfig":
        if self.layers is not None and self.kind != "lora":
            raise ValueError(f"layers is {self.layers} and kind is '{self.kind}': remove layers, or choose kind 'lora'")
        if not self.pseudo and not self.weight:
            raise ValueError("pseudo is false and weight is 0: there is nothing left to learn from, set one of them")
        if self.curriculum and self.kind != "head":
            raise ValueError(f"curriculum is set and kind is '{self.kind}': remove it, or choose kind 'head'")
        return self
