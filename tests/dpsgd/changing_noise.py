"""A mechanism for tests whose noise changes by step; unlike those of the package it may have no noise at all."""

from dataclasses import asdict, dataclass
from typing import Any

from dp_accounting.dp_event import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent

from rayprivacy.core.units import PrivacyUnit, Protection


@dataclass(frozen=True)
class ChangingGaussian:
    """Poisson samples, and at step t a Gaussian of standard deviation multipliers[t] * C."""

    multipliers: tuple[float, ...]
    clipping_norm: float = 1.0
    sampling_rate: float = 0.5
    unit: PrivacyUnit = PrivacyUnit.USER

    @property
    def steps(self) -> int:
        return len(self.multipliers)

    @property
    def groups(self) -> int:
        return 1

    @property
    def strategy(self) -> tuple[float, ...]:
        return (1.0,)

    @property
    def protection(self) -> Protection:
        return Protection(self.unit)

    @property
    def parameters(self) -> dict[str, Any]:
        return {"mechanism": "changing", **asdict(self)}

    @property
    def event(self) -> ComposedDpEvent:
        return self.event_of(range(self.steps))

    def event_of(self, steps: range) -> ComposedDpEvent:
        return ComposedDpEvent(
            [PoissonSampledDpEvent(self.sampling_rate, GaussianDpEvent(self.multipliers[step])) for step in steps]
        )

    def noise_std(self, step: int) -> float:
        return self.multipliers[step] * self.clipping_norm
