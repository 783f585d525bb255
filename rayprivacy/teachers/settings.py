"""The `teachers` and `resources` blocks of a recipe: what is computed, and separately how fast."""

from pydantic import Field, model_validator

from rayprivacy.core.config import Config


class TeachersConfig(Config):
    """What a teacher is. Everything here may change what is released, so it is part of the release id.

    Attributes:
        count: M, the PUBLIC number of teachers; shards that no user falls into vote the public model.
        max_tokens: tokens kept of one record.
        row_tokens: length of a packed row.
        max_rows: public bound on the rows of one teacher.
        rank: size of the square matrix each teacher trains.
        shortlist: public tokens the training loss ranks against each other.
        steps, batch, learning_rate: AdamW steps, examples per step, and step size.
        stack: teachers trained together in one batched product; also the shards in one part file.
    """

    count: int = Field(default=1000, ge=1, le=1_000_000)
    max_tokens: int = Field(default=40, ge=1)
    row_tokens: int = Field(default=64, ge=8)
    max_rows: int = Field(default=4, ge=1)
    rank: int = Field(default=128, ge=1)
    shortlist: int = Field(default=1024, ge=2)
    steps: int = Field(default=6, ge=1)
    batch: int = Field(default=64, ge=1)
    learning_rate: float = Field(default=2e-2, gt=0)
    stack: int = Field(default=50, ge=1)

    @model_validator(mode="after")
    def _a_record_fits_a_row(self) -> "TeachersConfig":
        if self.max_tokens + 2 > self.row_tokens:
            raise ValueError(
                f"max_tokens {self.max_tokens} and two marks need row_tokens of {self.max_tokens + 2} at least"
            )
        return self

    @property
    def parts(self) -> int:
        """Stacks that hold all teachers."""
        return -(-self.count // self.stack)

    def members(self, part: int) -> range:
        """The teacher ids of one stack."""
        return range(part * self.stack, min(self.count, (part + 1) * self.stack))


class ResourcesConfig(Config):
    """How the work is spread. Nothing here changes what is released (a test shows it).

    Attributes:
        actors: teacher actors; 0 means one for every CPU of the cluster.
        cpus_per_actor: CPUs each actor reserves.
        group: stacks an actor is handed at a time.
        query_batch: queries in one vote call.
        address: a Ray cluster to join; `local` starts one here.
    """

    actors: int = Field(default=0, ge=0)
    cpus_per_actor: float = Field(default=1.0, gt=0)
    group: int = Field(default=1, ge=1)
    query_batch: int = Field(default=1024, ge=32, multiple_of=32)
    address: str = "local"
