"""Steps of plain training in the place of a mechanism, for rows of benchmarks that could never be released."""

from dataclasses import dataclass

from rayprivacy.release.step_mechanism import NoisySteps


@dataclass(frozen=True)
class WithoutNoise(NoisySteps):
    """Steps with a noise multiplier of 0, which could never be released: what plain training is."""

    def __post_init__(self) -> None:
        """Refuses nothing."""
