"""The `training` block of the generator, and its presets.

    quick   40 steps of 110 users, one record each: those of jobs/generator/chat.yaml
    good    60 steps of 250: NoisySGD+GC on Europarl               (benchmarks/results/dpsgd_table.json, noisy_sgd_gc)
    best    470 steps of 32: NoisySGD there, the best row          (benchmarks/results/dpsgd_table.json, noisy_sgd)

`good` and `best` read as many users; large steps can be shared by many workers, and many small ones learn more.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from rayprivacy.dpsgd.presets import PresetTraining

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "quick": {"expected_batch": 110.0, "steps": 40, "chunk": 10, "max_records": 1},
    "good": {"expected_batch": 250.0, "steps": 60, "chunk": 20, "max_records": 4},
    "best": {"expected_batch": 32.0, "steps": 470, "chunk": 94, "max_records": 4},
}


class GeneratorTraining(PresetTraining):
    """The `training` block.

    Attributes:
        preset: `quick`, `good` or `best`.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS
    preset: Literal["quick", "good", "best"] | None = Field(default=None, exclude=True)
