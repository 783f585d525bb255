"""Clipping: how much of each unit's gradient enters the sum, so that no unit moves the sum by more than C.

    flat        min(1, C / ||g||)
    per_layer   each parameter's part of g by itself, to C / sqrt(parameters): the whole is at most C long
    automatic   C / (||g|| + 0.01): nearly every gradient gets length C (Bu, Wang, Zha & Karypis 2023, "Automatic
                Clipping", AUTO-S with gamma 0.01), so that C and the learning rate are one number to tune, not two

With *scales* alpha_k, one for each parameter, g_k / alpha_k takes the place of g_k in all of these (Dupuy et al.,
ICASSP 2022): what a unit adds to the sum is at most C long after this division, and at most alpha_k C in parameter k.
The noise of a parameter is multiplied by its alpha_k (`noisy_optimizer`): noise of one scale in the divided space,
where the sensitivity is C as before. The scales are public: they come from no private text (`layer_scale`).

In each of them the sum over units changes by a vector of norm at most C when a unit is added or removed: the
sensitivity that the noise sigma C is scaled to. A unit whose gradient is NaN or infinite anywhere gets coefficient 0
everywhere. It counts in the accounting as any other.

No unit leaves longer than C, rounding included. The norms that come in are bounds from above (`models.norms.terms`);
roots, quotients and products with float32 coefficients add a few float32 steps (6e-8 each), and RESERVE, sixteen such
steps, is more than all of them. `low_precision` aims another 1 % lower: a reserve for what the tensor cores of a GPU,
whose accumulators are not specified, may add to sums of products of bfloat16 numbers. The noise stays at sigma C.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from rayprivacy.core.errors import ConfigError

ClippingKind = Literal["flat", "per_layer", "automatic"]

Lazy = dict[nn.Parameter, Callable[[], Tensor]]  # clipped sums, each computed when it is asked for, once

GAMMA = 0.01
RESERVE = 2.0**-20
LOW_PRECISION = 0.99


@dataclass(frozen=True)
class Clipping:
    """The clipping norm C and what is done with it.

    Attributes:
        norm: C, the L2 norm that one unit's part of the sum never exceeds.
        kind: see the module.
        low_precision: activations or weights are in less than float32.
        scales: alpha_k of each parameter, in the order of `ClippedGradients.parameters`; none leaves all alike.
    """

    norm: float
    kind: ClippingKind = "flat"
    low_precision: bool = False
    scales: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.norm) and self.norm > 0):
            raise ConfigError(f"clipping_norm is {self.norm}: give a positive, finite number.")
        if self.kind not in ("flat", "per_layer", "automatic"):
            raise ConfigError(f"clipping is {self.kind!r}: use 'flat', 'per_layer' or 'automatic'.")

        if not all(0 < scale < math.inf for scale in self.scales):
            raise ConfigError("a scale of a layer is not positive and finite: take scales from layer_scale.")

    def coefficients(self, squared: Tensor) -> Tensor:
        """From squared norms, [units, parameters]: coefficients, float32 [units], or of that shape for `per_layer`."""
        squared = squared.double()
        if self.scales:
            squared = squared / torch.tensor(self.scales, dtype=torch.float64, device=squared.device).square()
        norm = self.norm * (1 - RESERVE) * (LOW_PRECISION if self.low_precision else 1)
        whole = squared.sum(1).sqrt()
        if self.kind == "per_layer":
            own = squared.sqrt()
            found = _shrink(own, norm / math.sqrt(squared.shape[1]))
            return found.where(whole.isfinite()[:, None], 0).float()
        found = norm / (whole + GAMMA) if self.kind == "automatic" else _shrink(whole, norm)
        return found.where(whole.isfinite(), 0).float()


def _shrink(norms: Tensor, most: float) -> Tensor:
    return (most / norms).clamp(max=1)  # 0 / 0 cannot be: the norm C is positive
