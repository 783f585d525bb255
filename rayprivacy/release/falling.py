"""The mechanism of DP-SGD's steps with noise that falls by a public schedule: its levels, and the charge of each.

Steps fall into at most 16 levels of whole chunks (`accounting.schedule`). All steps of a level have the noise of that
level and are the event Poisson(q, Gaussian(sigma_level)), whatever came before: which noise a step has depends on its
number alone, so the steps compose heterogeneously and adaptively, as those of one noise do. A chunk is charged the
events of its own steps.
"""

from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any

from dp_accounting.dp_event import ComposedDpEvent, DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from rayprivacy.accounting.loss import PLD_SIGMA_FLOOR
from rayprivacy.accounting.schedule import NoiseSchedule
from rayprivacy.core.errors import ReleaseError
from rayprivacy.release.step_mechanism import SampledGaussian


@dataclass(frozen=True)
class FallingGaussian(SampledGaussian):
    """Steps whose noise falls by a public schedule; `noise_multiplier` is that of a step whose factor is 1.

    Attributes:
        schedule: by which it falls.
        chunk: steps that are charged at once; levels are made of whole chunks.

    Raises:
        ReleaseError: a schedule that falls leaves a multiplier of 0.05 or less, which accountants take no figure of.
        ConfigError: an epoch is no whole number of chunks.

    >>> schedule = NoiseSchedule("linear", tau=1.0, steps_per_epoch=2)
    >>> steps = FallingGaussian(0.1, noise_multiplier=2.0, clipping_norm=0.5, steps=4, schedule=schedule, chunk=2)
    >>> steps.levels, [steps.noise_std(step) for step in range(4)]
    (((2.0, 2), (1.0, 2)), [1.0, 1.0, 0.5, 0.5])
    """

    schedule: NoiseSchedule = field(kw_only=True)
    chunk: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        last = self.levels[-1][0]
        if self.schedule.falls and last <= PLD_SIGMA_FLOOR:
            raise ReleaseError(
                f"the noise schedule leaves a noise multiplier of {last:.3g} in the last steps: let it stay above"
                f" {PLD_SIGMA_FLOOR}, with a smaller tau, fewer steps or more noise at first."
            )

    @property
    def levels(self) -> tuple[tuple[float, int], ...]:
        """Noise multipliers, in order, each with the number of steps in a row that have it."""
        factors = self.schedule.levels(self.steps, self.chunk)
        return tuple((self.noise_multiplier * factor, times) for factor, times in factors)

    def multiplier(self, step: int) -> float:
        """The noise multiplier of a step: that of its level.

        Raises:
            ReleaseError: there is no such step.
        """
        for (sigma, _), end in zip(self.levels, accumulate(times for _, times in self.levels), strict=True):
            if 0 <= step < end:
                return sigma
        raise ReleaseError(f"step {step} is not one of the {self.steps} steps: no noise is planned for it.")

    def noise_std(self, step: int) -> float:
        """See `StepMechanism`."""
        return self.multiplier(step) * self.sensitivity

    def event_of(self, steps: range) -> DpEvent:
        """See `StepMechanism`; one event for each level that the steps are in."""
        parts, begin = [], 0
        for sigma, times in self.levels:
            shared = min(steps.stop, begin + times) - max(steps.start, begin)
            if shared > 0:
                one = PoissonSampledDpEvent(float(self.sampling_rate), GaussianDpEvent(float(sigma)))
                parts.append(SelfComposedDpEvent(one, shared))
            begin += times
        return parts[0] if len(parts) == 1 else ComposedDpEvent(parts)

    @property
    def parameters(self) -> dict[str, Any]:
        """See `StepMechanism`."""
        return {"mechanism": "falling-gaussian", **asdict(self), "levels": [list(level) for level in self.levels]}
