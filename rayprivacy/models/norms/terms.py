"""Gradients of one parameter, by row or by unit, in the form that is cheapest to take norms and weighted sums of.

    Outer   sum over positions s of left[u, s] right[u, s]^T    linear layers
    Dense   the gradient itself                                 biases, norms, layers that are small for their length
    Rows    a few rows of a matrix, zero elsewhere              embeddings

The squared norm of a sum of outer products comes from two Gram matrices,

    || sum_s l_s r_s^T ||^2 = sum_{s,t} (l_s . l_t) (r_s . r_t),

or from the gradient itself when that is no larger than its operands; it is kept then, for the weighted sum.

Rounding. What is summed up must not be longer than the norm that it was clipped by, so norms are bounds from above:

- Where positions nearly cancel, a Gram sum is mostly rounding. A float32 inner product of m columns can be off by m
  half steps, and comes near to it where columns are alike, so that partial sums are all rounded the same way: of such a
  unit 3 C left a layer of 4,096 columns, and 7 C one of 49,152. So Gram matrices are computed in float64. A GPU, whose
  float64 may be slow, multiplies COLUMNS columns at a time in float32, and adds up in float64: both matrices are off by
  less than COLUMNS steps of the square of `length` = sum_s ||l_s|| ||r_s||, which `parameter` adds (`margin`). Products
  that are 0 in float32, though their factors are not, are made up for there by FLOOR, of each column in `length`.
- A weighted sum multiplies c l_s by r_s. Where operands are rounded to a format with unit roundoff u (2^-8 in bfloat16,
  on a GPU), c l_s is rounded again, each position by itself, so that the errors do not cancel where the positions do.
  Norms were taken of round(l_s), and c round(l_s) and round(c l_s) are both within u c ||l_s|| of c l_s. So the sum is
  longer than c times its norm by at most 2 u c sum_s ||l_s|| ||r_s||, up to terms of order u^2, for which the bound
  uses 2 u (1 + 2 u): the norm that is handed out is the norm of the sum plus `rounding` = 2 u (1 + 2 u) times `length`.
- A sum over a batch that is rounded to bfloat16 on the way can exceed the clipping norm by far more than one example's
  rounding error: the running sum, not the example, sets the size of the error. So every sum over positions or units is
  accumulated and returned in float32. Operands in lower precision are multiplied as they are on a GPU (products of two
  bfloat16 numbers are exact in float32), and are copied to float32 elsewhere.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

EXACT = frozenset({"cpu"})  # kinds of device whose float64 is good for Gram matrices
COLUMNS = 256  # of one float32 product elsewhere
FLOOR = 2.0**-100  # even times a margin it is far above float32's least number
_MOST = torch.finfo(torch.float32).max
MARGIN = 2 * torch.finfo(torch.float32).eps  # of the square of a length, for what is rounded once or twice


@dataclass(frozen=True, repr=False)
class Weights:
    """Coefficients float32 [kept units]; `kept` are their indices, None if every unit takes part.

    Units of coefficient 0 are left out, not multiplied: 0 times NaN is NaN, and would poison everybody's sum.
    """

    values: Tensor
    kept: Tensor | None

    @staticmethod
    def of(coefficients: Tensor) -> "Weights":
        """From float32 coefficients [units]."""
        nonzero = coefficients != 0
        if bool(nonzero.all()):
            return Weights(coefficients, None)
        kept = nonzero.nonzero().squeeze(1)
        return Weights(coefficients[kept], kept)

    def select(self, operand: Tensor) -> Tensor:
        """The units of [units, ...] that take part."""
        return operand if self.kept is None else operand[self.kept]

    def scale(self, operand: Tensor) -> Tensor:
        """The units of [units, positions, width] that take part, times their coefficients, float32."""
        return self.select(operand).float() * self.values[:, None, None]


def batched_product(left: Tensor, right: Tensor) -> Tensor:
    """[units, n, m] times [units, m, k] in float32."""
    return _product(torch.bmm, left, right)


def product(left: Tensor, right: Tensor) -> Tensor:
    """[n, m] times [m, k] in float32."""
    return _product(torch.mm, left, right)


def _product(multiply: Callable[..., Tensor], left: Tensor, right: Tensor) -> Tensor:
    # Whatever a loss, a module that it imports or a container has set: TensorFloat32 rounds operands to 11 bits.
    torch.set_float32_matmul_precision("highest")
    with torch.autocast(left.device.type, enabled=False):
        if dtype := operand_dtype(left, right):
            return multiply(left.to(dtype), right.to(dtype), out_dtype=torch.float32)
        return multiply(left.float(), right.float())


def operand_dtype(left: Tensor, right: Tensor) -> torch.dtype | None:
    """What both operands are rounded to before they are multiplied; None for float32."""
    if not left.is_cuda:
        return None
    return next((side.dtype for side in (left, right) if side.dtype != torch.float32), None)


@dataclass(frozen=True, repr=False)
class Dense:
    """Gradients as they are, float32 [units, *shape], and the squares of their norms, float64 [units]."""

    values: Tensor
    squares: Tensor | None = None  # where they are known

    def by_unit(self, rows: int) -> "Dense":
        """Gradients of units of `rows` rows each."""
        return self if rows == 1 else Dense(self.values.unflatten(0, (-1, rows)).sum(1))

    def squared(self) -> Tensor:
        """Squared norms, float64 [units]: they are as exact as what will be summed."""
        if self.squares is not None:
            return self.squares
        squared: Tensor = torch.linalg.vector_norm(self.values.flatten(1), dim=1, dtype=torch.float64).square()
        return squared

    def apart(self) -> list["Dense"]:
        """The gradient of each unit by itself."""
        return [Dense(*own) for own in zip(self.values.split(1), self.squared().split(1), strict=True)]

    def sum(self, weights: Weights) -> Tensor:
        """The weighted sum over units, float64 [*shape].

        In float64 the products are exact, and a unit more or less moves the sum of the others by 1e-16 of it at most.
        """
        flat = weights.select(self.values).flatten(1).double()
        return torch.mv(flat.T, weights.values.double()).view(self.values.shape[1:])


@dataclass(frozen=True, repr=False)
class Outer:
    """Sums of outer products of left [units, positions, n] and right [units, positions, m]."""

    left: Tensor
    right: Tensor

    def by_unit(self, rows: int) -> "Outer":
        """Gradients of units of `rows` rows each: their positions side by side."""
        units = len(self.left) // rows
        return Outer(*(side.reshape(units, -1, side.shape[-1]) for side in (self.left, self.right)))

    @property
    def short(self) -> bool:
        """Whether the gradients [units, n, m] are no larger than the operands they would replace."""
        return self.as_short_as(self.left.shape[1])

    def as_short_as(self, positions: int) -> bool:
        """Whether the gradient of a unit is no larger than the operands of so many positions."""
        n, m = self.left.shape[2], self.right.shape[2]
        return n * m <= positions * (n + m)

    def dense(self) -> Dense:
        """The gradients themselves."""
        return Dense(batched_product(self.left.transpose(1, 2), self.right))

    @property
    def margin(self) -> float:
        """How much of the square of `length` a squared norm can be too small by."""
        return MARGIN if self.left.device.type in EXACT else COLUMNS * torch.finfo(torch.float32).eps

    @property
    def rounding(self) -> float:
        """By how much of `length` a weighted sum can exceed its norm; see the module."""
        dtype = operand_dtype(self.left, self.right)
        twice_unit = 0.0 if dtype is None else torch.finfo(dtype).eps
        return twice_unit * (1 + twice_unit)

    def squared(self) -> tuple[Tensor, Tensor]:
        """Squared norms, float64 [units], by Gram matrices, and `length` [units], of which `margin` is rounding.

        Gram matrices are symmetric: the quarter of later positions against earlier ones is not computed.
        """
        half = self.left.shape[1] // 2
        early = [_gram(side[:, :half], side[:, :half]) for side in (self.left, self.right)]
        every = [_gram(side, side[:, half:]) for side in (self.left, self.right)]
        late = [gram[:, half:] for gram in every]
        sums = [torch.mul(*grams).sum((1, 2)) for grams in (early, late, [gram[:, :half] for gram in every])]
        left, right = (
            torch.cat([_squares(early[at], side[:, :half]), _squares(late[at], side[:, half:])], 1)
            for at, side in enumerate((self.left, self.right))
        )
        return sums[0] + sums[1] + 2 * sums[2], (left * right).sqrt().sum(1)

    def scaled(self, weights: Weights) -> tuple[Tensor, Tensor]:
        """Both sides of the units that take part, one of them times their coefficients: [positions, n], [positions, m].

        The product of the first, turned, with the second is the weighted sum over units.
        """
        if self.left.shape[2] <= self.right.shape[2]:  # scaling makes a copy: of the narrower operand
            left, right = weights.scale(self.left), weights.select(self.right)
        else:
            left, right = weights.select(self.left), weights.scale(self.right)
        return left.flatten(0, 1), right.flatten(0, 1)


def _squares(gram: Tensor, vectors: Tensor) -> Tensor:
    """Squared lengths of vectors, or a little more; infinite where float32 could not hold them."""
    squares = gram.diagonal(dim1=1, dim2=2)
    if vectors.device.type not in EXACT:
        squares = squares + vectors.shape[2] * FLOOR * vectors.ne(0).any(2)  # padding has length 0
    return squares.where(squares <= _MOST, torch.inf)


def _gram(these: Tensor, those: Tensor) -> Tensor:
    """Inner products of vectors [units, these, m] with [units, those, m], float64 [units, these, those]."""
    pieces = zip(these.split(COLUMNS, 2), those.transpose(1, 2).split(COLUMNS, 1), strict=True)
    if these.device.type in EXACT:
        return reduce(torch.add, (torch.bmm(one.double(), other.double()) for one, other in pieces))
    return reduce(torch.add, (batched_product(one, other).double() for one, other in pieces))


@dataclass(frozen=True, repr=False)
class Rows:
    """Float32 rows right[u, s] in row ids[u, s] of a matrix of `shape` [vocabulary, width] that is zero elsewhere.

    A token that occurs twice is one row: in rows `by_unit`, those of the same unit and id have been added into the
    first of them, and the others are zero.
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
        return _gram(outer.right.to(torch.float32), self.right).mul_(picked).sum((1, 2))

    def add_to(self, dense: Dense) -> Dense:
        """The sum with gradients [units, *shape], which are changed in place."""
        for gradient, ids, right in zip(dense.values, self.ids, self.right, strict=True):
            gradient.index_add_(0, ids, right)
        return Dense(dense.values)

    def add_sum(self, total: Tensor | None, weights: Weights) -> Tensor:
        """The weighted sum over units, float32 of `shape`, added to `total` in place if there is one."""
        if total is None:
            total = self.right.new_zeros(self.shape)
        return total.index_add_(0, weights.select(self.ids).flatten(), weights.scale(self.right).flatten(0, 1))
