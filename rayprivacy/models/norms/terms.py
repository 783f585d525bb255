"""Gradients of one parameter, by row or by unit, in the form that is cheapest to take norms and weighted sums of.

    Outer   sum over positions s of left[u, s] right[u, s]^T    linear layers
    Dense   the gradient itself                                 biases, norms, layers that are small for their length

and, in `rows`, what embeddings have. The squared norm of a sum of outer products comes from two Gram matrices,

    || sum_s l_s r_s^T ||^2 = sum_{s,t} (l_s . l_t) (r_s . r_t),

or from the gradient itself when that is no larger than its operands; it is kept then, for the weighted sum.

Rounding. Where positions nearly cancel, a Gram sum can be too small, by about one float32 step of the square of
`length` = sum_s ||l_s|| ||r_s||, and too small a norm is too weak a clip. `parameter` therefore adds a few such steps.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rayprivacy.models.norms.products import add_product, batched_product
from rayprivacy.models.norms.weights import Weights


@dataclass(frozen=True, repr=False)
class Dense:
    """Gradients as they are, float32 [units, *shape]."""

    values: Tensor

    def by_unit(self, rows: int) -> "Dense":
        """Gradients of units from those of rows, so many rows each."""
        return self if rows == 1 else Dense(self.values.unflatten(0, (-1, rows)).sum(1))

    def squared(self) -> tuple[Tensor, Tensor]:
        """Squared norms [units], and 0: they are as exact as what will be summed."""
        flat = self.values.flatten(1)
        squared = torch.linalg.vecdot(flat, flat)
        return squared, torch.zeros_like(squared)

    def add_sum(self, total: Tensor | None, weights: Weights) -> Tensor:
        """The weighted sum over units, float32 [*shape], added to `total` in place if there is one."""
        flat = weights.select(self.values).flatten(1)
        summed = add_product(None, weights.values[None], flat).view(self.values.shape[1:])
        return summed if total is None else total.add_(summed)


@dataclass(frozen=True, repr=False)
class Outer:
    """Sums of outer products of left [units, positions, n] and right [units, positions, m]."""

    left: Tensor
    right: Tensor

    def by_unit(self, rows: int) -> "Outer":
        """Gradients of units from those of rows: positions of so many rows side by side."""
        units = len(self.left) // rows
        return Outer(*(side.reshape(units, -1, side.shape[-1]) for side in (self.left, self.right)))

    @property
    def short(self) -> bool:
        """Whether the gradients [units, n, m] are no larger than the operands they would replace."""
        positions, n, m = self.left.shape[1], self.left.shape[2], self.right.shape[2]
        return n * m <= positions * (n + m)

    def dense(self) -> Dense:
        """The gradients themselves."""
        return Dense(batched_product(self.left.transpose(1, 2), self.right))

    def squared(self) -> tuple[Tensor, Tensor]:
        """Squared norms [units] by Gram matrices, and `length` [units] that bounds their rounding.

        Gram matrices are symmetric: the quarter of later positions against earlier ones is not computed.
        """
        half = self.left.shape[1] // 2
        early = self._gram(slice(half), slice(half))
        every = self._gram(slice(None), slice(half, None))
        across, late = every[:, :half], every[:, half:]
        squared = early.sum((1, 2)) + late.sum((1, 2)) + 2 * across.sum((1, 2))
        return squared, _lengths(early) + _lengths(late)

    def _gram(self, these: slice, those: slice) -> Tensor:
        """Inner products [units, these, those] of the outer products at these positions with those."""
        gram = batched_product(self.left[:, these], self.left[:, those].transpose(1, 2))
        return gram.mul_(batched_product(self.right[:, these], self.right[:, those].transpose(1, 2)))

    def add_sum(self, total: Tensor | None, weights: Weights) -> Tensor:
        """The weighted sum over units, float32 [n, m], added to `total` in place if there is one."""
        if self.left.shape[2] <= self.right.shape[2]:  # scaling makes a copy: of the narrower operand
            left, right = weights.scale(self.left), weights.select(self.right)
        else:
            left, right = weights.select(self.left), weights.scale(self.right)
        return add_product(total, left.flatten(0, 1).T, right.flatten(0, 1))


def _lengths(gram: Tensor) -> Tensor:
    """Sums of the norms of a Gram matrix' vectors, [units]."""
    return gram.diagonal(dim1=1, dim2=2).sqrt().sum(1)
