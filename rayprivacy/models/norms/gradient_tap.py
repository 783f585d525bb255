"""An autograd node on a module's output: passes value and gradient through, and reports the gradient with the input.

Why an autograd node rather than two lists kept by forward hooks: what a node saves is packed, dropped and recomputed
like everything else in the graph, so activation checkpointing keeps its saving of memory, and the input arrives in
the backward pass together with the gradient that belongs to it. What is reported then need not be kept whole either.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn


@dataclass(frozen=True, repr=False)
class Use:
    """One call of a module: its input and the gradient of the losses' sum by its output, both [rows, ...]."""

    module: nn.Module
    input: Tensor
    gradient: Tensor


def tap(module: nn.Module, input: Tensor, output: Tensor, report: Callable[[Use], None]) -> Tensor:
    """The output; `report` is called with its gradient when the backward pass comes by."""
    return cast(Tensor, _Tap.apply(output, input.detach(), module, report))  # type: ignore[no-untyped-call]


class _Tap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, input: Tensor, module: nn.Module, report: Callable[[Use], None]) -> Tensor:
        ctx.save_for_backward(input)
        ctx.module = module
        ctx.report = report
        return output.detach()  # not a view for autograd, so a model may go on to change it in place

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.report(Use(ctx.module, ctx.saved_tensors[0], gradients[0]))
        return gradients[0], None, None, None
