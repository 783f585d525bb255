"""What makes one trial better than another: a figure of public or released text, or one that is charged.

- `public_perplexity`: of the trial's model on public sentences of yours (`metric.text`, one a line);
- `distinct_2`, ... : of its synthetic text alone;
- `heldout_loss`: of its model on held-out private text, with noise, and paid for before it is seen (`charged`).

All other figures on held-out private text are refused when the space is read. A choice that looks at them uses the
private corpus once more for each trial, without a charge.
"""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow.parquet as pq
from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from rayprivacy.core.config import Config
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.paths import PathKind
from rayprivacy.evaluation.fluency import total_nll
from rayprivacy.evaluation.language import distinct_n, perplexity
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.features import encode
from rayprivacy.models.settings import ModelConfig
from rayprivacy.release.vote import SIGMA_RANGE
from rayprivacy.runs.recipe import Recipe

CHARGED = "heldout_loss"
MODES: dict[str, Literal["min", "max"]] = {
    "public_perplexity": "min",
    "distinct_1": "max",
    "distinct_2": "max",
    CHARGED: "min",
}
OF_MODELS = ("public_perplexity", CHARGED)
_OF_CHARGED = ("noise_multiplier", "most", "records")


class MetricConfig(Config):
    """The `metric` block.

    Attributes:
        name: one of MODES.
        text: for `public_perplexity`: a UTF-8 file of PUBLIC sentences, one a line.
        max_tokens: longer sentences are cut.
        max_texts: lines that are read, at most.
        noise_multiplier: for `heldout_loss`: noise std / L2 sensitivity of each report.
        most: for `heldout_loss`: public bound on the loss of a user, in nats per token; a larger one counts as this.
        records: for `heldout_loss`: texts of a user that are read, at most.
    """

    name: str = "public_perplexity"
    text: Annotated[str | None, PathKind.PUBLIC] = Field(default=None, min_length=1)
    max_tokens: int = Field(default=62, ge=1)
    max_texts: int = Field(default=500, ge=1)
    noise_multiplier: float | None = Field(default=None, ge=SIGMA_RANGE[0], le=SIGMA_RANGE[1])
    most: float = Field(default=10.0, ge=0.01, le=1000)
    records: int = Field(default=4, ge=1)

    @field_validator("name")
    @classmethod
    def _public(cls, name: str) -> str:
        if name not in MODES:
            why = "it reads private text" if "heldout" in name or "private" in name else "it is unknown"
            raise ValueError(
                f"{why}, and what steers is computed from public or released text, or charged as '{CHARGED}' is: use"
                f" {', '.join(MODES)}"
            )
        return name

    @model_validator(mode="after")
    def _has_its_keys(self) -> "MetricConfig":
        if (self.name == "public_perplexity") != (self.text is not None):
            raise ValueError(f"name is '{self.name}': text goes with 'public_perplexity', and only there")
        if self.charged != (self.noise_multiplier is not None):
            raise ValueError(f"name is '{self.name}': noise_multiplier goes with '{CHARGED}', and only there")
        return self

    @model_serializer(mode="wrap")
    def _without_unused_noise(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Left out where it means nothing, so that searches from before there was a charged metric are found again.
        written: dict[str, Any] = handler(self)
        return {name: value for name, value in written.items() if name not in _OF_CHARGED or self.charged}

    @property
    def charged(self) -> bool:
        """Whether it reads private text, and is paid for."""
        return self.name == CHARGED

    @property
    def mode(self) -> Literal["min", "max"]:
        """Whether small or large is good."""
        return MODES[self.name]

    @property
    def of_model(self) -> bool:
        """Whether the model is enough, before there is any synthetic text."""
        return self.name in OF_MODELS


def read_sentences(config: MetricConfig) -> list[str]:
    """The public sentences of `public_perplexity`; ConfigError where there are none."""
    try:
        lines = Path(config.text or "").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"metric.text is {config.text!r}: it cannot be read ({type(error).__name__}); give a UTF-8 file of public"
            " sentences, one a line."
        ) from None
    sentences = [line.strip() for line in lines if line.strip()][: config.max_texts]
    if not sentences:
        raise ConfigError(f"metric.text is {config.text!r}: it holds no sentence; write public ones, one a line.")
    return sentences


def utility(folder: Path, recipe: Recipe, config: MetricConfig, texts: str) -> float:
    """The figure of one trial, where it is free; NaN for a model that has diverged.

    Of its run directory only what was released is read: `model/`, or the file `texts`.
    """
    if config.of_model:
        return _perplexity(recipe.model.model_copy(update={"base": str(folder / "model")}), config)
    released = [str(text) for text in pq.read_table(folder / texts)["text"].to_pylist()]
    return distinct_n(released, int(config.name.rpartition("_")[2]))


def _perplexity(model: ModelConfig, config: MetricConfig) -> float:
    backbone = load_backbone(model)
    documents = [backbone.document(text, config.max_tokens) for text in read_sentences(config)]
    rows = encode(backbone, documents, config.max_tokens + 2, len(documents))
    total, tokens = total_nll(rows.hidden, rows, backbone.head)
    return perplexity(total, tokens) if math.isfinite(total) else math.nan
