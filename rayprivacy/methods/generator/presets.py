"""The `training` block of the generator, and its presets.

    quick   40 steps of 110 users, one record each: those of jobs/generator/chat.yaml
    good    60 steps of 250: NoisySGD+GC on Europarl               (benchmarks/results/dpsgd_table.json, noisy_sgd_gc)
    best    470 steps of 32: NoisySGD there                        (benchmarks/results/dpsgd_table.json, noisy_sgd)

`good` and `best` read as many users, and large steps can be shared by many workers. Few large steps want a larger
learning rate than many small ones: with the default of LoRA, 0.002, `quick` and `good` learn far less.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from rayprivacy.dpsgd.presets import PresetTraining


def _rate(value: float) -> dict[str, Any]:
    return {"optimizer": {"learning_rate": value}}


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "quick": {"expected_batch": 110.0, "steps": 40, "chunk": 10, "max_records": 1, **_rate(0.012)},
    "good": {"expected_batch": 250.0, "steps": 60, "chunk": 20, "max_records": 4, **_rate(0.006)},
    "best": {"expected_batch": 32.0, "steps": 470, "chunk": 94, "max_records": 4},
}


class GeneratorTraining(PresetTraining):
    """The `training` block.

    Attributes:
        preset: `quick`, `good` or `best`.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS
    preset: Literal["quick", "good", "best"] | None = Field(default=None, exclude=True)
