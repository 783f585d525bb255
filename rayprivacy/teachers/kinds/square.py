"""Teachers that are one square matrix R_j [r, r] between the public bases of models/adapters.

    change(h) = (h P) R_j S         P [width, r] whitens public states, S [r, width] spans the output embeddings

Both bases come from public text, so that a teacher is r * r numbers and starts where public text ends.
"""

import torch

from rayprivacy.teachers.kinds.head import HeadKind
from rayprivacy.teachers.kinds.kind import State


class SquareKind(HeadKind):
    """The tensor `matrix` is R, float32 [G, r, r]; r is `teachers.width`, or the rank of the bases if that is less."""

    def start(self) -> State:
        """R of zeros."""
        rank = min(self.config.width, len(self.warm.basis.outward))
        return {"matrix": torch.zeros(rank, rank)}

    def moved(self, teachers: State, inward: torch.Tensor) -> torch.Tensor:
        """The change in the coordinates of S, [..., rows, r]."""
        return torch.matmul(inward, teachers["matrix"])

    def inward(self, hidden: torch.Tensor) -> torch.Tensor:
        """The states in the coordinates of P, [rows, r]."""
        return hidden @ self.warm.basis.inward[:, : self.config.width]

    def outward(self, head: torch.Tensor) -> torch.Tensor:
        """Rows of the head in the coordinates of S, [rows, r]."""
        return head @ self.warm.basis.outward[: self.config.width].T
