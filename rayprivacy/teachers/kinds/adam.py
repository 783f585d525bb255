"""Adam (Kingma & Ba, 2015), which is AdamW without weight decay, for a few small tensors.

torch.optim does the same and imports a compiler on its way, which costs every new actor a second and a thousand modules
before its first step; a teacher's whole training may take less.
"""

from collections.abc import Iterable

import torch

BETAS = (0.9, 0.95)
EPSILON = 1e-8


class Adam:
    """Moves tensors against their gradients, in place."""

    def __init__(self, tensors: Iterable[torch.Tensor], step_size: float) -> None:
        self._moments = [(tensor, torch.zeros_like(tensor), torch.zeros_like(tensor)) for tensor in tensors]
        self._step_size, self._steps = step_size, 0

    @torch.no_grad()
    def step(self) -> None:
        """Take one step, and forget the gradients."""
        self._steps += 1
        unbiased = [1 - beta**self._steps for beta in BETAS]
        for tensor, mean, square in self._moments:
            gradient = tensor.grad
            assert gradient is not None
            mean.lerp_(gradient, 1 - BETAS[0])
            square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
            spread = (square / unbiased[1]).sqrt_().add_(EPSILON)
            tensor.addcdiv_(mean, spread, value=-self._step_size / unbiased[0])
            tensor.grad = None
