"""Next-token cross-entropy of packed rows under the frozen output head, in memory that does not grow with the rows.

A block's logits are vocabulary wide (256 positions of 49,152 tokens: 50 MB). Only what the backward pass needs of them
is kept, the gradient by the states; so a block's logits are gone before those of the next one are made.
"""

from typing import Any, cast

import torch

from rayprivacy.models.features import Encoded

BLOCK = 256


def next_token_loss(states: torch.Tensor, rows: Encoded, head: torch.Tensor) -> torch.Tensor:
    """Summed cross-entropy, in nats, over the positions of `rows` that predict one of their own document.

    Args:
        states: final states, [rows, row_tokens, width]; the gradient goes to them, never to the head.
        rows: their tokens and segments; the states in them are not looked at.
        head: output head, float32 [vocabulary, width].
    """
    keep = rows.predicts
    total = _CrossEntropy.apply(states[:, :-1][keep].float(), rows.ids[:, 1:][keep], head)  # type: ignore[no-untyped-call]
    return cast(torch.Tensor, total)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, targets: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        total = states.new_zeros(())
        gradients = [states[:0]]
        for block, wanted in zip(states.split(BLOCK), targets.split(BLOCK), strict=True):
            change = torch.log_softmax(block @ head.T, -1)
            total -= change.gather(1, wanted[:, None]).sum()
            if ctx.needs_input_grad[0]:
                change = change.exp_().scatter_add_(1, wanted[:, None], -change.new_ones(len(wanted), 1))
                gradients.append(change @ head)
        ctx.save_for_backward(torch.cat(gradients))
        return total

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.saved_tensors[0] * outer[0], None, None
