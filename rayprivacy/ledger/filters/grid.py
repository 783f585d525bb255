"""Costs as integers: exact sums that no order of addition can change, and that a cancelled charge leaves again exactly.

A cost is a vector of multiples of 2^-80, rounded up; a cap is rounded down. Python's integers do not overflow.

>>> up(0.5) == 2**79, up(Fraction(1, 3)) + up(Fraction(2, 3)) > down(1.0)
(True, True)
"""

from collections.abc import Iterable
from fractions import Fraction

GRID = 2**80

Vector = tuple[int, ...]


def up(value: float | Fraction) -> int:
    """The smallest multiple of the grid that is not below a finite value."""
    return -((-Fraction(value) * GRID) // 1)


def down(value: float | Fraction) -> int:
    """The largest multiple of the grid that is not above a finite value."""
    return (Fraction(value) * GRID) // 1


def real(steps: int) -> float:
    """A multiple of the grid as a float."""
    return steps / GRID


def total(vectors: Iterable[Vector], size: int) -> Vector:
    """The sum of vectors of one size."""
    return tuple(map(sum, zip(*vectors, strict=True))) or (0,) * size
