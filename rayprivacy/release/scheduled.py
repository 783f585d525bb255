"""The mechanism of a redaction schedule: noisy steps on full text, and steps on redacted text with light noise or none.

Source: Domain Private Transformers (2023), section on redaction schedules; Shi et al. (2022) for two stages, and for
light noise in the first one, against what a policy misses.

What is protected, and against what. Let F be a public, row-wise policy. Neighbours have the same redacted copies, and
differ in ONE unit whose full text takes part in the noisy steps or does not (zero-out). A noisy step is then the event
of plain DP-SGD: Poisson(q, Gaussian(sigma)), with the sigma of this step where noise falls, and with noise on 2C where
micro-batches are clipped. A step on redacted copies is post-processing: it is a function of the weights before it,
which are released with noise, of the copies, which are equal on both sides, and of noise of its own. So the noisy steps
alone are charged. They are fixed before the run, by public coins: a charge is a matter of the recipe.

This is selective differential privacy: it says nothing of what the policy leaves in the copies. Charges of this
mechanism are admitted to selective accounts of the policy, and to no others.

With light noise the redacted steps are steps of plain DP-SGD as well, on other text: a unit's copy depends on this unit
alone, and its gradient is clipped as any. So all steps together are differentially private for users, with no regard to
the policy, at the larger epsilon of `central_event_of`. A central account pays that besides.

A chunk of steps is charged for its noisy steps. One that has none rides on the next chunk that has some, or, at the
end, on the last one.

>>> every = SampledGaussian(0.1, 1.0, 0.5, 6)
>>> steps = ScheduledGaussian(every, redacted=(True, True, False, True, False, True), policy="digits")
>>> steps.event.count, [steps.noise_std(step) for step in range(6)]
(2, [0.0, 0.0, 0.5, 0.0, 0.5, 0.0])
>>> charged_chunks(steps, 2)
[range(0, 4), range(4, 6)]
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.units import AccountKind, PrivacyUnit, Protection
from rayprivacy.release.step_mechanism import SampledGaussian, StepMechanism


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
