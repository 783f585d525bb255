"""The mechanism of DP-SGD's steps with correlated noise: banded matrix factorisation, with its groups and its charge.

Source: Choquette-Choo et al. (NeurIPS 2023), "(Amplified) Banded Matrix Factorization", algorithm 2 and theorem 4.

Units fall into b groups by a keyed hash of their own. Step t is open to group t mod b alone, and each unit of it takes
part by a coin of probability p = b q. With G_t the sum of clipped gradients of step t and C banded (`strategy`), what
is released is G + sigma C_clip C^-1 z, or, which is the same, C G + sigma C_clip z.

Why T steps cost T / b events Poisson(p, Gaussian(sigma)): a unit's steps lie b apart, and what it adds at step t is in
rows t, ..., t + b - 1 of C G alone: column t of C times its clipped gradient. So those rows are one event, they do not
overlap with those of its next step, and the column is at most 1 long. The gradient of step t is fixed by what was
released before row t. What others add in these rows may depend on the rows before, which are released: given them, it
is the same in both worlds, and can be subtracted. So nothing more is lost by adaptivity, within an event or between
them.
Each group has T / b steps that are open to it.

A chunk is charged the events that begin in it. The last b - 1 rows of an event may come in the next chunk, and are paid
for by then.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from rayprivacy.core.errors import ReleaseError
from rayprivacy.release.step_mechanism import SampledGaussian
from rayprivacy.release.strategy import prefix_strategy


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
