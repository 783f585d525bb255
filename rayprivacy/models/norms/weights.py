"""Coefficients of units in a weighted sum, and which units take part at all."""

from dataclasses import dataclass

from torch import Tensor


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
