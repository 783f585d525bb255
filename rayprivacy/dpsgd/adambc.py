"""DP-AdamBC: AdamW that takes the variance of the noise, which is known, off its second moment.

Source: Tang, Shpilevskiy and Lecuyer (AAAI 2024), "DP-AdamBC: Your DP-Adam Is Actually DP-SGD (Unless You Apply Bias
Correction)".

Adam divides the mean gradient by the root of the mean squared gradient. Noise of variance Phi on every coordinate adds
Phi to the latter, which is then nearly the same everywhere, and Adam is SGD. Subtracted, what is left is about the
gradient itself. It is an estimate and may be below zero, so that a floor is needed. Where noise is correlated over
steps, each step has a variance Phi_t of its own, and what is subtracted is their mean with Adam's weights.

All that is read are noisy gradients and public numbers: post-processing.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


class AdamBC(torch.optim.Optimizer):
    """AdamW with the variance of the noise taken off.

    Args:
        params: what is updated.
        variances: Phi_t of every step, on each coordinate of the mean gradient.
        betas, weight_decay: as in AdamW.
        floor: what the second moment is at least, as a share of the noise's part in it.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        variances: Sequence[float],
        betas: tuple[float, float],
        weight_decay: float,
        floor: float,
    ) -> None:
        super().__init__(params, {"lr": 0.0, "betas": betas, "weight_decay": weight_decay})
        self._floor, self._noise = floor, _mean_so_far(variances, betas[1])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group["lr"], group["betas"], group["weight_decay"])

    def _update(self, parameter: Tensor, rate: float, betas: tuple[float, float], decay: float) -> None:
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        updates, mean, squared = int(state["step"]), state["exp_avg"], state["exp_avg_sq"]
        mean.lerp_(gradient, 1 - betas[0])
        squared.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
        noise = self._noise[updates - 1]
        second = (squared / (1 - betas[1] ** updates)).sub_(noise).clamp_(min=max(self._floor * noise, _TINY))
        parameter.mul_(1 - rate * decay)
        parameter.addcdiv_(mean, second.sqrt_(), value=-rate / (1 - betas[0] ** updates))


_TINY = 1e-16  # where there is no noise: the square of Adam's own epsilon


def _mean_so_far(variances: Sequence[float], beta: float) -> list[float]:
    """For each step the mean of the variances so far, with the weights that Adam's second moment gives them."""
    found, held = [], 0.0
    for updates, variance in enumerate(variances, start=1):
        held = beta * held + (1 - beta) * variance
        found.append(held / (1 - beta**updates))
    return found
