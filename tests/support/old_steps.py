"""The five classes of noisy steps that `NoisySteps` replaced, as they were: `test_noisy_steps.py` compares the two."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from typing import Any, Protocol

from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)

from rayprivacy.accounting.events import validate
from rayprivacy.accounting.loss import PLD_SIGMA_FLOOR
from rayprivacy.accounting.schedule import NoiseSchedule
from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.units import AccountKind, PrivacyUnit, Protection
from rayprivacy.release.strategy import prefix_strategy


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


@dataclass(frozen=True)
class MicroBatchGaussian(FallingGaussian):
    """Steps of N clipped means; `noise_multiplier` is noise std / 2C, of a step whose factor is 1.

    Attributes:
        microbatches: N.

    Raises:
        ReleaseError: there are fewer than 1 micro-batch.

    >>> from rayprivacy.accounting.schedule import NoiseSchedule
    >>> shape = {"schedule": NoiseSchedule(), "chunk": 5, "microbatches": 16}
    >>> MicroBatchGaussian(0.1, noise_multiplier=1.5, clipping_norm=0.5, steps=10, **shape).noise_std(step=0)
    1.5
    """

    microbatches: int = field(kw_only=True)

    def __post_init__(self) -> None:
        if type(self.microbatches) is not int or self.microbatches < 1:
            raise ReleaseError(f"microbatches is {self.microbatches!r}: give a whole number of at least 1.")
        super().__post_init__()

    @property
    def sensitivity(self) -> float:
        """See `SampledGaussian`; on the sum over micro-batches."""
        return 2 * self.clipping_norm

    @property
    def parameters(self) -> dict[str, Any]:
        """See `StepMechanism`."""
        return {**super().parameters, "mechanism": "microbatch-gaussian"}


@dataclass(frozen=True)
class BandedGaussian(SampledGaussian):
    """Steps with banded noise; `sampling_rate` is p, the coin of a unit in the steps that are open to its group.

    Attributes:
        bands: b, how many steps in a row share noise, and how many groups there are.

    Raises:
        ReleaseError: there are fewer than 1 band, or the steps are no multiple of them.

    >>> steps = BandedGaussian(0.2, noise_multiplier=1.0, clipping_norm=0.5, steps=12, bands=4)
    >>> steps.event.count, steps.event.event.sampling_probability, steps.groups
    (3, 0.2, 4)
    """

    bands: int = field(kw_only=True)

    def __post_init__(self) -> None:
        if type(self.bands) is not int or self.bands < 1:
            raise ReleaseError(f"bands is {self.bands!r}: give a whole number of at least 1.")
        super().__post_init__()

    @property
    def groups(self) -> int:
        """See `StepMechanism`."""
        return self.bands

    @property
    def strategy(self) -> tuple[float, ...]:
        """See `StepMechanism`."""
        return prefix_strategy(self.bands, self.steps)

    def event_of(self, steps: range) -> SelfComposedDpEvent:
        """See `StepMechanism`; an event for every b steps.

        Raises:
            ReleaseError: the steps are no whole multiple of the bands.
        """
        if len(steps) % self.bands or steps.start % self.bands:
            raise ReleaseError(
                f"steps {steps.start} to {steps.stop} are charged at once with bands {self.bands}: let steps and chunk"
                " be multiples of bands."
            )
        one = PoissonSampledDpEvent(float(self.sampling_rate), GaussianDpEvent(float(self.noise_multiplier)))
        return SelfComposedDpEvent(one, len(steps) // self.bands)

    @property
    def parameters(self) -> dict[str, Any]:
        """See `StepMechanism`."""
        return {"mechanism": "banded-gaussian", **asdict(self), "strategy": list(self.strategy)}


@dataclass(frozen=True)
class ScheduledGaussian:
    """Steps of which some read redacted text.

    Attributes:
        full: all steps as they would be on full text; step t has the noise that step t has there.
        redacted: for each step whether it reads redacted text.
        policy: digest of the public policy that redacts.
        light: noise multiplier of redacted steps; 0 leaves noise out.

    Raises:
        ReleaseError: there is not one entry for each step, no step is noisy, the policy has no name, the light noise is
            negative or infinite, or the noise of steps is correlated, so that none can go without.
    """

    full: SampledGaussian
    redacted: tuple[bool, ...]
    policy: str
    light: float = 0.0

    def __post_init__(self) -> None:
        if len(self.redacted) != self.steps:
            raise ReleaseError(f"the schedule has {len(self.redacted)} entries for {self.steps} steps: give one each.")
        if all(self.redacted):
            raise ReleaseError("no step of the schedule is noisy, so that there is nothing to charge: plan some.")
        if not self.policy:
            raise ReleaseError("the schedule names no policy: give the digest of the one that redacts.")
        if not 0 <= self.light < math.inf:
            raise ReleaseError(f"the light noise is {self.light}: give a finite multiplier, or 0 for none.")
        if self.groups > 1:
            raise ReleaseError("the noise of the steps is correlated, and cannot be left out of some: set bands to 1.")

    @property
    def sampling_rate(self) -> float:
        """See `StepMechanism`; of all steps alike."""
        return self.full.sampling_rate

    @property
    def groups(self) -> int:
        """See `StepMechanism`; one, of all."""
        return self.full.groups

    @property
    def clipping_norm(self) -> float:
        """See `StepMechanism`; of all steps alike."""
        return self.full.clipping_norm

    @property
    def steps(self) -> int:
        """See `StepMechanism`; redacted ones are among them."""
        return self.full.steps

    @property
    def unit(self) -> PrivacyUnit:
        """See `StepMechanism`."""
        return self.full.unit

    @property
    def strategy(self) -> tuple[float, ...]:
        """See `StepMechanism`; independent noise."""
        return self.full.strategy

    @property
    def noisy(self) -> tuple[int, ...]:
        """The steps that read full text."""
        return tuple(step for step, redacted in enumerate(self.redacted) if not redacted)

    def noise_std(self, step: int) -> float:
        """See `StepMechanism`; the light one, or 0, in a step that reads redacted text."""
        return self.light * self.full.sensitivity if self.redacted[step] else self.full.noise_std(step)

    @property
    def event(self) -> DpEvent:
        """See `StepMechanism`; of the noisy steps."""
        return self.event_of(range(self.steps))

    def event_of(self, steps: range) -> DpEvent:
        """See `StepMechanism`; the noisy steps among these.

        Raises:
            ReleaseError: there is none.
        """
        noisy = [self.full.event_of(range(step, step + 1)) for step in steps if not self.redacted[step]]
        if not noisy:
            raise ReleaseError(f"none of steps {steps.start} to {steps.stop} is noisy: charge them with later ones.")
        return _counted(noisy)

    def central_event_of(self, steps: range) -> DpEvent:
        """What some steps cost a user with no regard to the policy.

        Raises:
            ReleaseError: redacted steps take no noise: they cost more than any epsilon.
        """
        if not self.light:
            raise ReleaseError("redacted steps take no noise, and have no epsilon for users: give them light noise.")
        light = PoissonSampledDpEvent(float(self.sampling_rate), GaussianDpEvent(float(self.light)))
        return _counted(light if self.redacted[step] else self.full.event_of(range(step, step + 1)) for step in steps)

    @property
    def parameters(self) -> dict[str, Any]:
        """See `StepMechanism`."""
        own = {"redacted": list(self.redacted), "policy": self.policy, "light": self.light}
        return {"mechanism": "scheduled-gaussian", "full": self.full.parameters, **own}

    @property
    def protection(self) -> Protection:
        """See `StepMechanism`; selective."""
        return replace(self.full.protection, kind=AccountKind.SELECTIVE)


def _counted(events: Iterable[DpEvent]) -> DpEvent:
    """The events of single steps as one: equal ones, wherever they come, are a count."""
    counts: dict[DpEvent, int] = {}
    for event in events:
        one = event.event if isinstance(event, SelfComposedDpEvent) else event
        counts[one] = counts.get(one, 0) + 1
    parts = [SelfComposedDpEvent(one, count) for one, count in counts.items()]
    return parts[0] if len(parts) == 1 else ComposedDpEvent(parts)


def full_steps(mechanism: StepMechanism) -> StepMechanism:
    """The steps on full text of a schedule; any other mechanism itself."""
    return mechanism.full if isinstance(mechanism, ScheduledGaussian) else mechanism


def redacted_steps(mechanism: StepMechanism) -> frozenset[int]:
    """The steps that may read redacted text only; none but those of a schedule."""
    if not isinstance(mechanism, ScheduledGaussian):
        return frozenset()
    return frozenset(step for step, redacted in enumerate(mechanism.redacted) if redacted)


def noiseless_steps(mechanism: StepMechanism) -> frozenset[int]:
    """The steps that take no noise: the redacted ones of a schedule without light noise."""
    if isinstance(mechanism, ScheduledGaussian) and mechanism.light:
        return frozenset()
    return redacted_steps(mechanism)


def charged_chunks(mechanism: StepMechanism, chunk: int) -> list[range]:
    """The steps that are charged at once, in order: `chunk` of them, or more where those have no noisy step.

    Args:
        mechanism: all steps.
        chunk: how many are charged at once.
    """
    free, chunks, first = redacted_steps(mechanism), [], 0
    for end in [*range(chunk, mechanism.steps, chunk), mechanism.steps]:
        if not free.issuperset(range(first, end)):
            chunks.append(range(first, end))
            first = end
    return [*chunks[:-1], range(chunks[-1].start, mechanism.steps)]
