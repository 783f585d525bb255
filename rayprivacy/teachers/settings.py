"""The `teachers` and `resources` blocks of a recipe: what is computed, and separately how fast."""

import math
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from rayprivacy.core.config import Config, PathKind

_RANKS, _LEARNING_RATES = {"square": 128, "lora": 8}, {"square": 2e-2, "lora": 3e-3}  # of each kind
SHORTLIST = 1024  # public tokens that the training loss ranks against each other


class TeachersConfig(Config):
    """What a teacher is. Everything here may change what is released, so it is part of the release id.

    Attributes:
        count: M, the PUBLIC number of teachers; shards that no user falls into vote the public model.
        kind: `square` adapts the final trunk state, `lora` the last layers (or all).
        layers: for `lora`: how many of the last layers are adapted; all if absent.
        max_tokens: tokens kept of one record.
        row_tokens: length of a packed row.
        max_rows: public bound on the rows of one group (a user; a shard where the unit is record or phrase).
        rank: size of what a teacher trains; by default 128 for `square`, 8 for `lora`.
        epochs: how often a teacher sees each of its examples.
        max_steps: public bound on its AdamW steps.
        batch, learning_rate: examples per step, and step size (by default one that suits the kind).
        stack: shards in one part file. It is named in the release id, and decides no bit of what is released.
    """

    count: int = Field(default=1000, ge=1, le=1_000_000)
    kind: Literal["square", "lora"] = "square"
    layers: int | None = Field(default=None, ge=1)
    max_tokens: int = Field(default=40, ge=1)
    row_tokens: int = Field(default=64, ge=8)
    max_rows: int = Field(default=64, ge=1)
    rank: int | None = Field(default=None, ge=1)
    epochs: float = Field(default=4.0, gt=0)
    max_steps: int = Field(default=64, ge=1)
    batch: int = Field(default=64, ge=1)
    learning_rate: float | None = Field(default=None, gt=0)
    stack: int = Field(default=50, ge=1)

    @model_validator(mode="after")
    def _a_record_fits_a_row(self) -> "TeachersConfig":
        if self.max_tokens + 2 > self.row_tokens:
            raise ValueError(
                f"max_tokens {self.max_tokens} and two marks need row_tokens of {self.max_tokens + 2} at least"
            )
        return self

    @model_validator(mode="after")
    def _only_lora_has_layers(self) -> "TeachersConfig":
        if self.layers is not None and self.kind != "lora":
            raise ValueError(f"layers is {self.layers} and kind is '{self.kind}': remove layers, or choose kind 'lora'")
        return self

    @property
    def width(self) -> int:
        """The rank, or the default one of the kind."""
        return self.rank or _RANKS[self.kind]

    @property
    def step_size(self) -> float:
        """The learning rate, or the default one of the kind."""
        return self.learning_rate or _LEARNING_RATES[self.kind]

    @property
    def parts(self) -> int:
        """Part files that hold the shards of all teachers."""
        return -(-self.count // self.stack)

    def members(self, part: int) -> range:
        """The ids of the teachers whose shards one part file holds."""
        return range(part * self.stack, min(self.count, (part + 1) * self.stack))

    def part_of(self, teacher: int) -> int:
        """The part file that holds a teacher's shard."""
        return teacher // self.stack

    def steps(self, examples: int) -> int:
        """AdamW steps of a teacher with this number of examples."""
        return min(self.max_steps, math.ceil(self.epochs * examples / self.batch))


class ResourcesConfig(Config):
    """How the work is spread. Nothing here changes what is released (a test shows it).

    Attributes:
        actors: teacher actors; 0 means as many as the cluster has room for.
        cpus_per_actor: CPUs each actor reserves.
        gpus_per_actor: the share of a GPU that each actor reserves and computes on, like 0.25; 0 means CPUs alone.
        features: where the trunk's states of private text are kept; by default inside the run, for this run alone.
    """

    actors: int = Field(default=0, ge=0)
    cpus_per_actor: float = Field(default=1.0, gt=0)
    gpus_per_actor: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    features: Annotated[str | None, PathKind.PRIVATE] = Field(default=None, min_length=1)

    @field_validator("gpus_per_actor")
    @classmethod
    def _one_gpu_is_shared(cls, share: float) -> float:
        if share > 1 and share != int(share):
            raise ValueError("an actor takes a share of one GPU, or whole ones: give at most 1, or a whole number")
        return share
