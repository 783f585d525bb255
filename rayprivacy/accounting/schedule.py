"""Noise that falls by a public rule: z_t = z0 d(t), where t counts steps or public epochs of a fixed number of steps.

    constant        d = 1
    linear          d = 1 / (1 + tau t)
    exponential     d = exp(-tau t)

Source: Dupuy et al. (ICASSP 2022), after Yu et al. (2019). A public schedule is a heterogeneous composition, no step of
which is free: every step is charged for the noise that it has. An accountant takes long with each different noise, and
the ledger reserves steps by the chunk. So neighbouring steps share a *level*: at most 16 of them, each of whole chunks,
each with the least noise that the rule gives any of its steps. What is drawn is the level's noise, and so is what is
charged.

>>> NoiseSchedule("linear", tau=1.0, steps_per_epoch=2).levels(steps=5)
((1.0, 2), (0.5, 2), (0.3333333333333333, 1))

In eDP-SGD many workers clip the mean of a micro-batch each, and add noise that falls. Two figures of it need care.
Clipping the *mean* of a micro-batch to C bounds what one record changes by 2C, not C: its presence may turn the mean
from one end of the ball to the other. And when each of N workers adds noise of standard deviation z C / N before the N
contributions are averaged, the average has noise z C / (N sqrt N) against a sensitivity of 2C / N, so

    effective multiplier = z / (2 sqrt N)    as printed (noise / N per worker)
    effective multiplier = z / 2             when each worker adds noise / sqrt N

The paper clips layers that are divided by scales alpha_k, multiplies by them again, and adds noise that knows nothing
of them. Layer k then moves by 2C alpha_k / N, and both figures are divided by the largest alpha_k.

A record must be able to affect one micro-batch only: micro-batches are assigned by a keyed hash into a fixed public
logical number N.

>>> decayed(2.0, NoiseSchedule("exponential", math.log(2)), 3, workers=4)
[(0.5, 1), (0.25, 1), (0.125, 1)]
>>> decayed(2.0, NoiseSchedule(), 1000, workers=4, per_worker="sqrt-n")
[(1.0, 1000)]
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent

from rayprivacy.accounting.accountant import Figures, figures
from rayprivacy.accounting.calibrate import equal_noise, guessed_epsilon, least_sigma, least_sigma_near
from rayprivacy.accounting.events import MAX_COUNT, SIGMA_RANGE, show
from rayprivacy.accounting.gaussian import epsilon_of
from rayprivacy.core.errors import ConfigError

ScheduleKind = Literal["constant", "linear", "exponential"]
Levels = tuple[tuple[float, int], ...]
NoisePerWorker = Literal["n", "sqrt-n"]
MOST_LEVELS = 16
_MOST_STEPS = 10**6
_MANY_LEVELS = 1024


@dataclass(frozen=True)
class NoiseSchedule:
    """The rule by which noise falls, without its first multiplier.

    `tau` says how fast it falls, for each t; 0 for `constant` alone. After `steps_per_epoch` steps, a public number, t
    grows by 1.
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


def decayed(
    z0: float,
    schedule: NoiseSchedule,
    steps: int,
    workers: int,
    per_worker: NoisePerWorker = "n",
    levels: int = MOST_LEVELS,
    max_scale: float = 1.0,
) -> list[tuple[float, int]]:
    """Effective multipliers of the schedule z_t = z0 d(t), t = 0 .. steps-1, with how many steps have each.

    Where the schedule has more than `levels` of them, neighbouring steps share the least: an upper bound. z0 is noise
    std / C as printed, `workers` the logical number N of contributions that are averaged, each with noise / N ("n", as
    printed) or noise / sqrt N ("sqrt-n"). `max_scale` is the largest alpha_k where noise is added after un-scaling.
    """
    for name, value in (("z0", z0), ("max_scale", max_scale)):
        if not 0 < value < math.inf:
            raise ConfigError(f"{name} is {value}: give a positive finite number.")
    if type(workers) is not int or not 1 <= workers <= MAX_COUNT:
        raise ConfigError(f"workers is {show(workers)}: give a whole number of at least 1.")
    if type(steps) is not int or not 1 <= steps <= (_MOST_STEPS if schedule.falls else MAX_COUNT):
        raise ConfigError(f"steps is {show(steps)}: give a whole number from 1, at most 1e6 with a decay.")
    start = z0 / max_scale / (2 if per_worker == "sqrt-n" else 2 * math.sqrt(workers))
    if start * schedule.factor(steps - 1) < SIGMA_RANGE[0]:
        raise ConfigError(f"the schedule leaves no noise after {steps} steps: let it fall less.")
    return [(start * factor, times) for factor, times in schedule.levels(steps, most=levels)]


@dataclass(frozen=True)
class DecayingNoise:
    """A public schedule of noise without its first multiplier z0, and what it costs with one.

    See `decayed`; `q` is the probability that a user is in a step, 1 if all are in each.
    """

    schedule: NoiseSchedule
    steps: int
    workers: int
    per_worker: NoisePerWorker = "n"
    q: float = 1.0
    max_scale: float = 1.0

    @property
    def divisor(self) -> str:
        """By this, in words, a printed multiplier is divided."""
        scale = "" if self.max_scale == 1 else f" * {self.max_scale:g}"
        return ("2 sqrt(N)" if self.per_worker == "n" else "2") + scale

    @property
    def _most(self) -> int:
        return _MANY_LEVELS if self.q == 1 else MOST_LEVELS  # without sampling a level costs no more than a sum

    def effective(self, z0: float) -> float:
        """Effective multiplier of the first step."""
        return decayed(z0, NoiseSchedule(), 1, self.workers, self.per_worker, max_scale=self.max_scale)[0][0]

    def levels(self, z0: float) -> list[tuple[float, int]]:
        """Effective multipliers, with how many steps have each."""
        return decayed(z0, self.schedule, self.steps, self.workers, self.per_worker, self._most, self.max_scale)

    @lru_cache(maxsize=16)  # noqa: B019 - equal schedules share what they cost, and few are kept
    def figures(self, z0: float, delta: float) -> Figures:
        """Epsilon of the whole schedule: exact for its levels without sampling, else by two accountants."""
        levels = self.levels(z0)
        if self.q < 1:
            return figures([(self._step(sigma), times) for sigma, times in levels], delta)
        mu = math.sqrt(math.fsum(times / sigma / sigma for sigma, times in levels))
        return Figures({"gdp": epsilon_of(mu, delta)})

    def least_z0(self, epsilon: float, delta: float) -> float:
        """The least first multiplier as printed with which the schedule costs at most epsilon."""

        def guess(z0: float) -> float:
            return guessed_epsilon([(self.q, sigma, times) for sigma, times in self.levels(z0)], delta)

        def rough(z0: float) -> float:
            one = equal_noise(self.levels(z0))
            return figures([(self._step(one), self.steps)], delta).epsilon

        def cost(z0: float) -> float:
            return self.figures(z0, delta).epsilon

        if self.q == 1 or not self.schedule.falls:  # quick enough
            return least_sigma(cost, epsilon, guess=guess)
        return least_sigma_near(cost, epsilon, guess, rough)

    def as_printed(self, z0: float) -> list[tuple[DpEvent, int]]:
        """The steps as the paper counts them: each printed multiplier z_t taken as effective."""
        printed = decayed(2 * z0, self.schedule, self.steps, 1, levels=self._most)
        return [(self._step(sigma), times) for sigma, times in printed]

    def printed_rho(self, z0: float) -> float:
        """The zCDP cost that the paper names: 1 / (2 z_t^2) for every epoch, or every step of a schedule by step."""
        epochs = -(-self.steps // self.schedule.steps_per_epoch)
        if not self.schedule.falls:
            return epochs / (2 * z0 * z0)
        by_epoch = replace(self.schedule, steps_per_epoch=1)
        return math.fsum(0.5 / (z0 * by_epoch.factor(epoch)) ** 2 for epoch in range(epochs))

    def _step(self, sigma: float) -> DpEvent:
        return GaussianDpEvent(sigma) if self.q == 1 else PoissonSampledDpEvent(self.q, GaussianDpEvent(sigma))
