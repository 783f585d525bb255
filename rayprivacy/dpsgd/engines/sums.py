"""Clipped sums of several physical batches, and their way into DeepSpeed's gradient hooks.

Clipping yields, for each parameter, a function that computes the clipped sum of one physical batch (`Lazy`). Plain
PyTorch, and ZeRO below stage 3, add these up as they come, float32 or float64, one physical batch in memory at a time.

DeepSpeed takes gradients from hooks that fire as autograd hands them to parameters. So each parameter gets a scalar
surrogate whose derivative is defined to be its clipped sum: one backward pass through the sum of surrogates computes
one clipped sum after the other, and each is reduced, and freed, before the next. No second pass through the model.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rayprivacy.dpsgd.gradients import Lazy


def add_up(lazies: Iterable[Lazy]) -> dict[nn.Parameter, Tensor]:
    """Sums over physical batches; a batch is only asked for when the one before it is done."""
    sums: dict[nn.Parameter, Tensor] = {}
    for lazy in lazies:
        while lazy:
            parameter, clipped_sum = lazy.popitem()
            own = clipped_sum()
            sums[parameter] = sums[parameter].add_(own) if parameter in sums else own
    return sums


def surrogate(parameters: Iterable[nn.Parameter], sums: Mapping[nn.Parameter, Callable[[], Tensor]]) -> Tensor:
    """A scalar zero whose gradient with respect to each parameter is what its function returns, or zero without one."""
    scalars = [_Surrogate.apply(each, sums.get(each)) for each in parameters]  # type: ignore[no-untyped-call]
    return torch.stack(scalars).sum()


class _Surrogate(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, parameter: nn.Parameter, clipped_sum: Callable[[], Tensor] | None) -> Tensor:
        context.clipped_sum, context.parameter = clipped_sum, parameter
        return torch.zeros((), device=parameter.device)

    @staticmethod
    def backward(context: Any, weight: Tensor) -> tuple[Tensor, None]:
        clipped_sum, parameter = context.clipped_sum, context.parameter
        context.clipped_sum = context.parameter = None
        if clipped_sum is None:
            return torch.zeros(parameter.shape, device=parameter.device), None
        return clipped_sum().to(weight.dtype).contiguous().mul_(weight), None


@contextmanager
def full_shapes(parameters: Iterable[Any]) -> Iterator[None]:
    """Give parameters that ZeRO 3 has partitioned away their full shape, without memory.

    Autograd compares the shapes of a parameter and of its gradient; the values are not looked at.
    """
    partitioned = [p for p in parameters if hasattr(p, "ds_shape") and p.shape != p.ds_shape]
    before = [p.data for p in partitioned]
    for parameter in partitioned:
        parameter.data = torch.empty(1, dtype=parameter.dtype, device=parameter.device).expand(parameter.ds_shape)
    try:
        yield
    finally:
        for parameter, data in zip(partitioned, before, strict=True):
            if parameter.numel() and not any(parameter.stride()):
                parameter.data = data
