"""Steps for tests whose noise changes by step; unlike those of the package they may have no noise at all."""

from dataclasses import dataclass

from rayprivacy.accounting.schedule import Levels, NoiseSchedule
from rayprivacy.release.step_mechanism import NoisySteps


@dataclass(frozen=True)
class Listed(NoiseSchedule):
    """A schedule that names the factor of every step."""

    factors: tuple[float, ...] = ()

    @property
    def falls(self) -> bool:
        return True

    def levels(self, steps: int, chunk: int = 1, most: int = 0) -> Levels:
        return tuple((factor, 1) for factor in self.factors)


@dataclass(frozen=True)
class Unchecked(NoisySteps):
    """Steps whose noise is whatever it is."""

    def __post_init__(self) -> None:
        """Refuses nothing."""


def changing(multipliers: tuple[float, ...], clipping_norm: float = 1.0, sampling_rate: float = 0.5) -> NoisySteps:
    """Poisson samples, and at step t a Gaussian of standard deviation multipliers[t] * C."""
    return Unchecked(sampling_rate, 1.0, clipping_norm, len(multipliers), schedule=Listed(factors=multipliers))
