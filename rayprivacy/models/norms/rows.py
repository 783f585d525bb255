"""Gradients of embeddings: a few rows per unit. A token that occurs twice is one row, and its parts add up first."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rayprivacy.models.norms.terms import Dense, Outer, batched_product
from rayprivacy.models.norms.weights import Weights


@dataclass(frozen=True, repr=False)
class Rows:
    """Float32 rows right[u, s] in row ids[u, s] of a matrix of `shape` [vocabulary, width] that is zero elsewhere.

    In rows `by_unit`, those of the same unit and id have been added into the first of them, and the others are zero.
    """

    ids: Tensor
    right: Tensor
    shape: torch.Size

    def by_unit(self, rows: int) -> "Rows":
        """Gradients of units of `rows` rows each; required before anything below."""
        units = len(self.ids) // rows
        ids = self.ids.reshape(units, -1)
        numbers = torch.arange(units, device=ids.device)[:, None] * self.shape[0] + ids
        found, which = numbers.flatten().unique(return_inverse=True)
        order = torch.arange(which.numel(), device=ids.device)
        first = torch.empty_like(found).scatter_reduce_(0, which, order, "amin", include_self=False)
        flat = self.right.flatten(0, 1).float()
        added = torch.zeros_like(flat).index_add_(0, first[which], flat)
        return Rows(ids, added.view(*ids.shape, -1), self.shape)

    def squared(self) -> tuple[Tensor, Tensor]:
        """Squared norms, float64 [units], and the sum of the rows' norms [units]."""
        lengths = torch.linalg.vector_norm(self.right, dim=2, dtype=torch.float64)
        return torch.linalg.vecdot(lengths, lengths), lengths.sum(1)

    def inner(self, outer: Outer) -> Tensor:
        """Inner products [units] with outer products of a tied weight: sum_{s,t} left_s[id_t] (right_s . right_t)."""
        positions = outer.left.shape[1]
        picked = outer.left.gather(2, self.ids[:, None].expand(-1, positions, -1))
        right = outer.right.to(torch.float32)
        return batched_product(right, self.right.transpose(1, 2)).mul_(picked).sum((1, 2), dtype=torch.float64)

    def add_to(self, dense: Dense) -> Dense:
        """The sum with gradients [units, *shape], which are changed in place."""
        for gradient, ids, right in zip(dense.values, self.ids, self.right, strict=True):
            gradient.index_add_(0, ids, right)
        return dense

    def add_sum(self, total: Tensor | None, weights: Weights) -> Tensor:
        """The weighted sum over units, float32 of `shape`, added to `total` in place if there is one."""
        if total is None:
            total = self.right.new_zeros(self.shape)
        return total.index_add_(0, weights.select(self.ids).flatten(), weights.scale(self.right).flatten(0, 1))
