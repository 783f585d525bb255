"""Next-token cross-entropy under the frozen output head, in memory that does not grow with the positions.

A block's logits are vocabulary wide (256 positions of 49,152 tokens: 50 MB). Only what the backward pass needs of them
is kept, the gradient by the states; so a block's logits are gone before those of the next one are made. The vocabulary
is worked on in a fixed number of pieces, which threads may share: no bit depends on how many there are.
"""

from functools import partial
from typing import Any, cast

import torch

from rayprivacy.models.features import Encoded
from rayprivacy.models.side_by_side import side_by_side

BLOCK = 256
PIECES = 4


def next_token_loss(
    states: torch.Tensor, rows: Encoded, head: torch.Tensor, keep: torch.Tensor | None = None
) -> torch.Tensor:
    """Summed cross-entropy, in nats, over the positions of `rows` that predict one of their own document.

    The gradient goes to the final states [rows, row_tokens, width], never to the head, float32 [vocabulary, width]; the
    states in `rows` are not looked at. `keep`, bool [rows, row_tokens - 1], takes some of these positions.
    """
    keep = rows.predicts if keep is None else keep
    return summed_cross_entropy(states[:, :-1][keep].float(), rows.ids[:, 1:][keep], head)


def summed_cross_entropy(
    states: torch.Tensor, targets: torch.Tensor, head: torch.Tensor, threads: int = 1
) -> torch.Tensor:
    """Summed cross-entropy, in nats, of states, float32 [positions, width], for the next tokens, int64 [positions].

    The gradient goes to the states, never to the head, float32 [vocabulary, width].
    """
    return cast(torch.Tensor, _CrossEntropy.apply(states, targets, head, threads))  # type: ignore[no-untyped-call]


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, targets: torch.Tensor, head: torch.Tensor, threads: int
    ) -> torch.Tensor:
        total, pieces = states.new_zeros(()), head.chunk(PIECES)
        gradients = [states[:0]]
        for block, wanted in zip(states.split(BLOCK), targets.split(BLOCK), strict=True):
            columns = head[wanted]
            scored = side_by_side(partial(_scores, block), pieces, threads)
            norms = torch.stack([norm for _, norm in scored]).logsumexp(0)
            total += norms.sum() - (block * columns).sum()
            if ctx.needs_input_grad[0]:
                of_pieces = [(logits, piece) for (logits, _), piece in zip(scored, pieces, strict=True)]
                expected = side_by_side(partial(_expected, norms), of_pieces, threads)
                gradients.append(torch.stack(expected).sum(0) - columns)
        ctx.save_for_backward(torch.cat(gradients))
        return total

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return ctx.saved_tensors[0] * outer[0], None, None, None


@torch.no_grad()
def _scores(states: torch.Tensor, piece: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits of a piece of the vocabulary, and the logarithm of the sum of their exponentials."""
    logits = states @ piece.T
    return logits, logits.logsumexp(1)


@torch.no_grad()
def _expected(norms: torch.Tensor, of_piece: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """What a piece adds to the mean column of the head under the model; its logits are overwritten."""
    logits, piece = of_piece
    return logits.sub_(norms[:, None]).exp_() @ piece
