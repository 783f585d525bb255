"""Head adapters, and the next-token loss under a frozen output head.

A head adapter is a small trainable matrix between two fixed public bases, on top of the final hidden state:

    logits(h) = W (h + S^T R^T P^T h)          W [V, d], P [d, r_in], S [r_out, d], R [r_in, r_out] trained

P whitens the public hidden states (its first column is nearly constant, so R's first row is a bias), S spans the
directions in which the public model's output embeddings differ most, weighted by how often tokens are predicted. Both
come from public text only. An adapter is a few thousand numbers, thousands of adapters share one cached trunk pass,
and one adapter folds exactly into an ordinary output head: W' = W + (W S^T) R^T P^T.

The loss takes memory that does not grow with the positions. A block's logits are vocabulary wide (256 positions of
49,152 tokens: 50 MB), so only the gradient by the states is kept of them, before those of the next block are made. The
vocabulary is cut into a fixed number of pieces, which threads may share: no bit depends on how many threads there are.
"""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file

from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Encoded, Features, side_by_side

HEAD_ROWS = 512
BLOCK = 256
PIECES = 4


@dataclass(frozen=True)
class Basis:
    """The public bases of adapters, and a shortlist of tokens."""

    inward: torch.Tensor  # P, float32 [width, rank]; columns whiten public hidden states, strongest first
    outward: torch.Tensor  # S, float32 [rank, width]; orthonormal rows, strongest first
    shortlist: torch.Tensor  # the tokens the public model predicts most, int64 [shortlist], with the end token

    @staticmethod
    def load(path: Path, device: str = "cpu") -> "Basis":
        """The bases of a safetensors file."""
        return Basis(**load_file(path, device))


@torch.no_grad()
def public_basis(backbone: Backbone, public: Features, rank: int, shortlist: int) -> Basis:
    """The bases that public features span, and a shortlist: of a rank and a length, or of as much as there is."""
    hidden = public.hidden.float()
    head = backbone.head
    frequency = torch.zeros(len(head))
    for rows in hidden.split(HEAD_ROWS):
        frequency += torch.softmax(rows @ head.T, -1).sum(0)
    frequency /= frequency.sum()
    _, strength, directions = torch.linalg.svd(hidden, full_matrices=False)
    rank = min(rank, len(strength))
    inward = directions[:rank].T / (strength[:rank] / math.sqrt(len(hidden)))
    centred = (head - frequency @ head) * frequency.sqrt()[:, None]
    outward = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)[:, :rank].T
    frequency[[backbone.start, backbone.end]] = math.inf
    return Basis(inward, outward, frequency.topk(min(shortlist, len(head))).indices.sort().values)


@dataclass(frozen=True)
class HeadAdapter:
    """One adapter: the public bases, and the matrix R, float32 [r_in, r_out]."""

    basis: Basis
    matrix: torch.Tensor

    @staticmethod
    def zeros(basis: Basis, rank_in: int, rank_out: int) -> "HeadAdapter":
        """The adapter that changes nothing."""
        return HeadAdapter(basis, torch.zeros(rank_in, rank_out))

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Adapted hidden states, float32 [examples, width]; logits are `adapted @ head.T`."""
        hidden = hidden.float()
        rank_in, rank_out = self.matrix.shape
        return hidden + hidden @ self.basis.inward[:, :rank_in] @ self.matrix @ self.basis.outward[:rank_out]

    @torch.no_grad()
    def fold(self, head: torch.Tensor) -> torch.Tensor:
        """The ordinary output head that gives the same logits, float32 [vocabulary, width]."""
        rank_in, rank_out = self.matrix.shape
        change = self.matrix.T @ self.basis.inward[:, :rank_in].T
        return head + (head @ self.basis.outward[:rank_out].T) @ change


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
    """Summed cross-entropy, in nats, of float32 states [positions, width] for targets; no gradient to the head."""
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
    logits = states @ piece.T
    return logits, logits.logsumexp(1)


@torch.no_grad()
def _expected(norms: torch.Tensor, of_piece: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """What a piece adds to the mean column of the head under the model; its logits are overwritten."""
    logits, piece = of_piece
    return logits.sub_(norms[:, None]).exp_() @ piece
