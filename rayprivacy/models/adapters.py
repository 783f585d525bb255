"""Head adapters: a small trainable matrix between two fixed public bases, on top of the final hidden state.

    logits(h) = W (h + S^T R^T P^T h)          W [V, d], P [d, r_in], S [r_out, d], R [r_in, r_out] trained

P whitens the public hidden states (its first column is nearly constant, so R's first row is a bias), S spans the
directions in which the public model's output embeddings differ most, weighted by how often tokens are predicted. Both
come from public text only. An adapter is a few thousand numbers, thousands of adapters share one cached trunk pass,
and one adapter folds exactly into an ordinary output head: W' = W + (W S^T) R^T P^T.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Features

HEAD_ROWS = 512


@dataclass(frozen=True)
class Basis:
    """Public bases and shortlist.

    Attributes:
        inward: P, float32 [width, rank]; columns whiten public hidden states, strongest first.
        outward: S, float32 [rank, width]; orthonormal rows, strongest first.
        shortlist: the tokens the public model predicts most, int64 [shortlist], with the end token.
    """

    inward: torch.Tensor
    outward: torch.Tensor
    shortlist: torch.Tensor

    @staticmethod
    def load(path: Path, device: str = "cpu") -> "Basis":
        """Read from a safetensors file."""
        return Basis(**load_file(path, device))


@torch.no_grad()
def public_basis(backbone: Backbone, public: Features, rank: int, shortlist: int) -> Basis:
    """Compute the bases from public features."""
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
    return Basis(inward, outward, frequency.topk(shortlist).indices.sort().values)


@dataclass(frozen=True)
class HeadAdapter:
    """One adapter.

    Attributes:
        basis: the public bases.
        matrix: R, float32 [r_in, r_out].
    """

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
