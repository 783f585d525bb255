"""A watched output: passes its value and its gradient through unchanged, and notes the gradient beside the input.

Why an autograd node rather than two lists kept by forward hooks: what a node saves is packed, dropped and recomputed
like everything else in the graph, so activation checkpointing keeps its saving of memory, and the input arrives in
the backward pass together with the gradient that belongs to it.
"""

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


def watch(module: nn.Module, input: Tensor, output: Tensor, uses: list[Use]) -> Tensor:
    """The output, whose gradient will append a `Use` when the backward pass comes by."""
    return cast(Tensor, _Watch.apply(output, input.detach(), module, uses))  # type: ignore[no-untyped-call]


class _Watch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, input: Tensor, module: nn.Module, uses: list[Use]) -> Tensor:
        ctx.save_for_backward(input)
        ctx.module, ctx.uses = module, uses
        return output.detach()  # not a view for autograd, so a model may go on to change it in place

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.uses.append(Use(ctx.module, ctx.saved_tensors[0], gradients[0]))
        return gradients[0], None, None, None
