"""The mechanism of steps that clip the mean of each micro-batch: eDP-SGD (Dupuy et al., ICASSP 2022).

The units of a step fall into N micro-batches, each unit into one, by a keyed hash of its own. A micro-batch gives the
gradient of the mean loss of its units, clipped to C, or zero where it has none. The step releases

    (sum over micro-batches + N(0, (2 sigma C)^2 I)) / N

One more unit changes one micro-batch and no other. The mean in it may turn from one end of the ball of radius C to the
other: the sum moves by 2C, or by C where the micro-batch was empty. Clipping a mean costs this factor of two, which
TensorFlow Privacy documents for its micro-batches too (issue 620). Noise is scaled to 2C, so sigma is the effective
multiplier, and a step is the event Poisson(q, Gaussian(sigma)): amplification by sampling holds for any function of the
sample, not only for sums over units. How many units a micro-batch has is private, and stays inside the clip; N is
public.
"""

from dataclasses import dataclass, field
from typing import Any

from rayprivacy.core.errors import ReleaseError
from rayprivacy.release.falling import FallingGaussian


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
