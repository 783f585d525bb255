"""Clipped gradients: from the losses of a physical batch to one sum per parameter, no unit above C.

Whatever computes them keeps three promises that the noise relies on: a unit's part of the sum depends on its own rows
only; it is at most C long, over all parameters together; and NaN or infinite gradients contribute nothing. The sums
are functions, called when an engine is ready to take the tensor, so at most one needs to be in memory.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rayprivacy.dpsgd.clipping import Clipping, Lazy
from rayprivacy.models.norms import Recorder

__all__ = ["BookKeeping", "ClippedGradients", "Lazy", "UnitGradients"]


class ClippedGradients(Protocol):
    """What an engine asks for clipped sums.

    Attributes:
        parameters: the trainable ones, in the order of `model.named_parameters()`; every answer has all of them.
    """

    parameters: list[nn.Parameter]

    def __call__(self, losses: Callable[[], Any], rows_per_unit: int, live: bool = True) -> Lazy:
        """Sums over the units of one batch of clipped gradients, float32 or float64, in the parameters' full shapes.

        `losses` runs the forward pass and returns one loss per row [rows]; a unit's rows are consecutive (for
        micro-batches see `MicroBatchGradients`). With `live` false the batch is a dummy, which runs for the sake of
        collectives and contributes zeros.
        """


class UnitGradients(ClippedGradients, Protocol):
    """Clipped gradients of units, as opposed to those of micro-batches."""

    def squared_norms(self, losses: Callable[[], Tensor], rows_per_unit: int) -> Tensor:
        """Squared norm of each unit's gradient by each parameter, float64 [units, parameters]; arguments as above."""


class BookKeeping:
    """Clipped gradients from one backward pass; see `models.norms`."""

    def __init__(self, model: nn.Module, clipping: Clipping) -> None:
        """Prepare a model whose trainable parameters are set; refused where a module of one has no rule."""
        self._tape, self._clipping = Recorder(model), clipping
        self.parameters = self._tape.parameters

    def __call__(self, losses: Callable[[], Tensor], rows_per_unit: int, live: bool = True) -> Lazy:
        """See `ClippedGradients`."""
        squared = self.squared_norms(losses, rows_per_unit)
        coefficients = self._clipping.coefficients(squared)
        return self._tape.weighted_sums(coefficients if live else torch.zeros_like(coefficients))

    def squared_norms(self, losses: Callable[[], Tensor], rows_per_unit: int) -> Tensor:
        """See `UnitGradients`."""
        with self._tape.recording():
            values = losses()
        self._tape.differentiate(values)
        return self._tape.squared_norms(rows_per_unit)
