"""Steps of plain training in the place of a mechanism, for rows of benchmarks that could never be released."""

from dataclasses import dataclass, field
from typing import Any

from dp_accounting.dp_event import DpEvent, NoOpDpEvent

from rayprivacy.core.units import PrivacyUnit, Protection


@dataclass(frozen=True)
class WithoutNoise:
    """Steps that could never be released: what plain training is."""

    sampling_rate: float
    steps: int
    clipping_norm: float
    groups: int = 1
    unit: PrivacyUnit = PrivacyUnit.USER
    protection: Protection = field(default_factory=Protection)
    strategy: tuple[float, ...] = (1.0,)
    event: DpEvent = field(default_factory=NoOpDpEvent)

    @property
    def parameters(self) -> dict[str, Any]:
        return {"mechanism": "without noise"}

    def event_of(self, steps: range) -> DpEvent:
        return self.event

    def noise_std(self, step: int) -> float:
        return 0.0
