"""eDP-SGD: many workers, each clipping the mean of a micro-batch, with noise that decays by a public schedule.

Two figures of the method need care. Clipping the *mean* of a micro-batch to C bounds what one record changes by 2C, not
C: its presence may turn the mean from one end of the ball to the other. And when each of N workers adds noise of
standard deviation z C / N before the N contributions are averaged, the average has noise z C / (N sqrt N) against a
sensitivity of 2C / N, so

    effective multiplier = z / (2 sqrt N)    as printed (noise / N per worker)
    effective multiplier = z / 2             when each worker adds noise / sqrt N

A record must be able to affect one micro-batch only: micro-batches are assigned by a keyed hash into a fixed public
logical number N. A public schedule of noise is a heterogeneous composition, no step of which is free.

>>> decayed(2.0, 0.5, 3, workers=4)
[(0.5, 1), (0.25, 1), (0.125, 1)]
>>> decayed(2.0, 1.0, 1000, workers=4, per_worker="sqrt-n")
[(1.0, 1000)]
"""

import math
from dataclasses import dataclass
from typing import Literal

from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent

from rayprivacy.accounting.fields import MAX_COUNT, SIGMA_RANGE, show
from rayprivacy.accounting.figures import Figures, figures
from rayprivacy.accounting.gaussian import epsilon_of
from rayprivacy.core.errors import ConfigError

NoisePerWorker = Literal["n", "sqrt-n"]
_MOST_STEPS = 10**6


def decayed(
    z0: float, decay: float, steps: int, workers: int, per_worker: NoisePerWorker = "n", levels: int = 16
) -> list[tuple[float, int]]:
    """Effective multipliers of the schedule z_t = z0 * decay^t, t = 0 .. steps-1, with how many steps have each.

    Above `levels` steps, neighbouring ones share the least multiplier among them: an upper bound of cost.

    Args:
        z0: multiplier as printed, noise std / C.
        decay: factor from one step to the next, in (0, 1].
        steps: number of steps.
        workers: logical number N of contributions that are averaged.
        per_worker: noise / N ("n", as printed) or noise / sqrt N ("sqrt-n").
        levels: how many different multipliers to keep apart.

    Raises:
        ConfigError: a number is out of range.
    """
    if not 0 < z0 < math.inf:
        raise ConfigError(f"z0 is {z0}: give a positive finite number.")
    if not 0 < decay <= 1:
        raise ConfigError(f"decay is {decay}: give a factor above 0 and at most 1.")
    if type(workers) is not int or not 1 <= workers <= MAX_COUNT:
        raise ConfigError(f"workers is {show(workers)}: give a whole number of at least 1.")
    if type(steps) is not int or not 1 <= steps <= (MAX_COUNT if decay == 1 else _MOST_STEPS):
        raise ConfigError(f"steps is {show(steps)}: give a whole number from 1, at most 1e6 with a decay.")
    start = z0 / 2 if per_worker == "sqrt-n" else z0 / (2 * math.sqrt(workers))
    if start * decay ** (steps - 1) < SIGMA_RANGE[0]:
        raise ConfigError(f"decay is {decay:g}, which leaves no noise after {steps} steps: give a factor nearer to 1.")
    if decay == 1:
        return [(start, steps)]
    blocks = min(steps, levels)
    ends = [steps * (block + 1) // blocks for block in range(blocks)]
    return [(start * decay ** (end - 1), end - begin) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


@dataclass(frozen=True)
class DecayingNoise:
    """A public schedule of noise without its first multiplier z0, and what it costs with one.

    Attributes:
        decay, steps, workers, per_worker: see `decayed`.
        q: probability that a user is in a step; 1 if all are in each.
    """

    decay: float
    steps: int
    workers: int
    per_worker: NoisePerWorker = "n"
    q: float = 1.0

    @property
    def divisor(self) -> str:
        """What a printed multiplier is divided by, in words."""
        return "2 sqrt(N)" if self.per_worker == "n" else "2"

    @property
    def _levels(self) -> int:
        return 1024 if self.q == 1 else 16  # without sampling a level costs no more than a sum

    def effective(self, z0: float) -> float:
        """Effective multiplier of the first step."""
        return decayed(z0, 1.0, 1, self.workers, self.per_worker)[0][0]

    def figures(self, z0: float, delta: float) -> Figures:
        """Epsilon of the whole schedule: exact for its levels without sampling, else by two accountants."""
        levels = decayed(z0, self.decay, self.steps, self.workers, self.per_worker, self._levels)
        if self.q < 1:
            return figures([(self._step(sigma), times) for sigma, times in levels], delta)
        mu = math.sqrt(math.fsum(times / sigma / sigma for sigma, times in levels))
        return Figures({"gdp": epsilon_of(mu, delta)})

    def as_printed(self, z0: float) -> list[tuple[DpEvent, int]]:
        """The steps as the paper counts them: each printed multiplier z_t taken as effective."""
        printed = decayed(2 * z0, self.decay, self.steps, 1, levels=self._levels)
        return [(self._step(sigma), times) for sigma, times in printed]

    def _step(self, sigma: float) -> DpEvent:
        return GaussianDpEvent(sigma) if self.q == 1 else PoissonSampledDpEvent(self.q, GaussianDpEvent(sigma))
