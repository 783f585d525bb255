"""The mechanism of DP-SGD's steps: what they are charged, and the noise that goes with the charge.

Source: Abadi et al. (2016), "Deep Learning with Differential Privacy", algorithm 1, with Poisson sampling.

In each step every user (or record) takes part by a coin of probability q of its own. The sum of the clipped gradients
changes by at most C when one user is added or removed, the noise has standard deviation sigma * C on every coordinate,
and the sum is divided by a public number. So a step is the event Poisson(q, Gaussian(sigma)), also when no unit was
sampled: an empty step draws noise and counts.

Charge and noise come from one object and cannot be set apart: the gate charges a chunk `event_of` its steps, and the
optimizer adds noise of `noise_std` to the step that is open. A mechanism may change its noise from step to step by a
public rule; the charge of a chunk is then that of its own steps.

>>> steps = SampledGaussian(sampling_rate=0.01, noise_multiplier=1.0, clipping_norm=0.5, steps=10)
>>> steps.event.count, steps.event.event.sampling_probability, steps.noise_std(step=0)
(10, 0.01, 0.5)
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from rayprivacy.accounting.events import validate
from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.units import PrivacyUnit, Protection


class StepMechanism(Protocol):
    """Sensitivity, noise and event of all steps of one training; immutable, picklable, and public in all its parts."""

    @property
    def sampling_rate(self) -> float:
        """The probability that a unit takes part in a step that is open to it."""

    @property
    def groups(self) -> int:
        """b: units fall into so many groups, and step t is open to group t mod b; 1 where all steps are open to all."""

    @property
    def clipping_norm(self) -> float:
        """C, bound on the L2 norm of one unit's clipped gradient."""

    @property
    def steps(self) -> int:
        """T, how many steps there are; they count from 0."""

    @property
    def unit(self) -> PrivacyUnit:
        """Whose gradient is clipped and whose coin is tossed."""

    @property
    def protection(self) -> Protection:
        """What the event's epsilon is about."""

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that fixes charge and noise of every step, as JSON values; part of the release's digest."""

    @property
    def event(self) -> DpEvent:
        """The charge of all steps together."""

    def event_of(self, steps: range) -> DpEvent:
        """The charge of one chunk of consecutive steps; a repetition after a crash must give an equal event."""

    @property
    def strategy(self) -> tuple[float, ...]:
        """c_0, c_1, ...: noise of all steps is C^-1 times independent draws, C the banded Toeplitz matrix of these.

        (1.0,) where the noise of steps is independent. The root of the sum of squares is at most 1.
        """

    def noise_std(self, step: int) -> float:
        """Standard deviation of a step's own draw, on each coordinate of the sum of clipped gradients."""


@dataclass(frozen=True)
class SampledGaussian:
    """Steps that all have the same noise: Poisson samples, and a Gaussian of standard deviation sigma * C.

    Attributes:
        sampling_rate: q, the probability that a user (or record) takes part in a step.
        noise_multiplier: sigma, noise std / clipping norm.
        clipping_norm: C, bound on the L2 norm of what one user (or record) adds to a step's sum: its sensitivity.
        steps: T.
        unit: whose gradient is clipped and whose coin is tossed.

    Raises:
        ReleaseError: the clipping norm is not positive and finite, the number of steps is not positive and whole, or
            the unit is neither user nor record.
        EventError: q or sigma is out of range.
    """

    sampling_rate: float
    noise_multiplier: float
    clipping_norm: float
    steps: int
    unit: PrivacyUnit = PrivacyUnit.USER

    def __post_init__(self) -> None:
        if not (math.isfinite(self.clipping_norm) and self.clipping_norm > 0):
            raise ReleaseError(f"the clipping norm is {self.clipping_norm}: give a positive finite number.")
        if type(self.steps) is not int or self.steps < 1:
            raise ReleaseError(f"steps is {self.steps!r}: give a whole number of at least 1.")
        if self.unit not in (PrivacyUnit.USER, PrivacyUnit.RECORD):
            raise ReleaseError(f"the unit is '{self.unit}': DP-SGD protects a user or a record.")
        validate(self.event)

    @property
    def groups(self) -> int:
        """See `StepMechanism`; one, of all."""
        return 1

    @property
    def strategy(self) -> tuple[float, ...]:
        """See `StepMechanism`; independent noise."""
        return (1.0,)

    @property
    def sensitivity(self) -> float:
        """How far one unit moves the sum of a step at most, in L2; what noise multipliers are in units of."""
        return self.clipping_norm

    def noise_std(self, step: int) -> float:
        """See `StepMechanism`; the same at every step."""
        return self.noise_multiplier * self.sensitivity

    @property
    def event(self) -> DpEvent:
        """See `StepMechanism`."""
        return self.event_of(range(self.steps))

    def event_of(self, steps: range) -> DpEvent:
        """See `StepMechanism`; a matter of their number alone."""
        one = PoissonSampledDpEvent(float(self.sampling_rate), GaussianDpEvent(float(self.noise_multiplier)))
        return SelfComposedDpEvent(one, len(steps))

    @property
    def parameters(self) -> dict[str, Any]:
        """See `StepMechanism`."""
        return {"mechanism": "sampled-gaussian", **asdict(self)}

    @property
    def protection(self) -> Protection:
        """See `StepMechanism`."""
        return Protection(self.unit)
