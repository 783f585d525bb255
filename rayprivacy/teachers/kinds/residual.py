"""Teachers that add a low-rank residual to the final trunk state.

    change(h) = h A_j B_j           A [width, r] starts from a public seed, B [r, width] at zero; both are trained

More free than a square matrix of the same size, as it finds its own directions, and slower: its change has the full
width of the state.
"""

import math

import torch

from rayprivacy.teachers.kinds.head import HeadKind
from rayprivacy.teachers.kinds.kind import State

SEED = 20_220_611  # public, and the same for every teacher


class ResidualKind(HeadKind):
    """The tensors `down` and `up` are A, float32 [G, width, r], and B, float32 [G, r, width]."""

    def start(self) -> State:
        """A drawn from the public seed, B of zeros."""
        width, rank = self.head.shape[1], self.config.width
        down = torch.randn(width, rank, generator=torch.Generator().manual_seed(SEED)) / math.sqrt(width)
        return {"down": down, "up": torch.zeros(rank, width)}

    def moved(self, teachers: State, inward: torch.Tensor) -> torch.Tensor:
        """The change itself, [..., rows, width]."""
        return torch.matmul(torch.matmul(inward, teachers["down"]), teachers["up"])

    def inward(self, hidden: torch.Tensor) -> torch.Tensor:
        """The states as they are."""
        return hidden

    def outward(self, head: torch.Tensor) -> torch.Tensor:
        """The head as it is."""
        return head
