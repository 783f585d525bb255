"""Noise that falls by a public rule: z_t = z0 d(t), where t counts steps or public epochs of a fixed number of steps.

    constant        d = 1
    linear          d = 1 / (1 + tau t)
    exponential     d = exp(-tau t)

Source: Dupuy et al. (ICASSP 2022), after Yu et al. (2019). A public schedule is a heterogeneous composition: every step
is charged for the noise that it has. An accountant takes long with each different noise, and the ledger reserves steps
by the chunk. So neighbouring steps share a *level*: at most 16 of them, each of whole chunks, each with the least noise
that the rule gives any of its steps. What is drawn is the level's noise, and so is what is charged.

>>> NoiseSchedule("linear", tau=1.0, steps_per_epoch=2).levels(steps=5)
((1.0, 2), (0.5, 2), (0.3333333333333333, 1))
>>> NoiseSchedule().levels(steps=1000)
((1.0, 1000),)
"""

import math
from dataclasses import dataclass
from typing import Literal

from rayprivacy.core.errors import ConfigError

ScheduleKind = Literal["constant", "linear", "exponential"]
Levels = tuple[tuple[float, int], ...]
MOST_LEVELS = 16


@dataclass(frozen=True)
class NoiseSchedule:
    """The rule by which noise falls, without its first multiplier.

    Attributes:
        kind: see the module.
        tau: how fast it falls, for each t; 0 for `constant` alone.
        steps_per_epoch: steps after which t grows by 1, a public number.
    """

    kind: ScheduleKind = "constant"
    tau: float = 0.0
    steps_per_epoch: int = 1

    def __post_init__(self) -> None:
        if self.kind not in ("constant", "linear", "exponential"):
            raise ConfigError(f"the noise schedule is {self.kind!r}: use 'constant', 'linear' or 'exponential'.")
        if not (self.tau == 0 if self.kind == "constant" else 0 < self.tau < math.inf):
            raise ConfigError(
                f"tau is {self.tau} with a {self.kind} noise schedule: give a positive finite number to one that falls,"
                " and none to a constant one."
            )
        if type(self.steps_per_epoch) is not int or self.steps_per_epoch < 1:
            raise ConfigError(f"steps_per_epoch is {self.steps_per_epoch!r}: give a whole number of at least 1.")

    @property
    def falls(self) -> bool:
        """Whether steps differ in their noise."""
        return self.kind != "constant"

    def factor(self, step: int) -> float:
        """d of a step, from 0: what the first multiplier is multiplied by; 0 where it is too small for a float."""
        epoch = step // self.steps_per_epoch
        if self.kind == "linear":
            return 1 / (1 + self.tau * epoch)
        return math.exp(-self.tau * epoch) if self.falls else 1.0

    def levels(self, steps: int, chunk: int = 1, most: int = MOST_LEVELS) -> Levels:
        """The factors of all steps, each with the number of steps in a row that have it."""
        if not self.falls:
            return ((1.0, steps),)
        if self.steps_per_epoch > 1 and self.steps_per_epoch % chunk:
            raise ConfigError(
                f"noise_schedule.steps_per_epoch is {self.steps_per_epoch} and chunk {chunk}: let an epoch be a"
                " multiple of chunk, so that all steps of a chunk have the same noise."
            )
        together = max(self.steps_per_epoch, chunk)
        pieces = -(-steps // together)
        blocks = min(pieces, most)
        ends = [min(steps, together * (pieces * (block + 1) // blocks)) for block in range(blocks)]
        return tuple((self.factor(end - 1), end - begin) for begin, end in zip([0, *ends[:-1]], ends, strict=True))
