"""Micro-batches: the units of one step, in N groups that are clipped as one each (`release.step_mechanism`).

Which micro-batch a unit is in must be a matter of this unit alone: cut by position, one more unit would shift all that
come after it, and move every micro-batch (1.75 C in place of 0.25 C was measured for 8 of them). Here every part file
of the corpus has m = N / parts micro-batches, and a keyed hash of (run, step, unit) chooses among those of the unit's
own part file. A user's part file is a keyed hash of the user. So assignment depends on the unit and on public numbers,
is another one at every step, and is the same for any number of workers; and no micro-batch spans two ranks.

Within a micro-batch everything may depend on everything, since what leaves it is clipped: rows are packed as they fit.
Micro-batches have a forward and a backward pass each, and share nothing: `MicroBatchGradients` refuses models that keep
statistics of what they read.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.batches import Batch, Document, packed
from rayprivacy.dpsgd.clipping import Clipping, Lazy


@dataclass(frozen=True, repr=False, eq=False)
class MicroBatch:
    """The units of one micro-batch, as physical batches that fit into memory one by one.

    Attributes:
        pieces: its rows.
        units: how many units it has; private.
    """

    pieces: tuple[Batch, ...]
    units: int

    @property
    def rows_per_unit(self) -> int:
        """All of its rows: it is clipped as one."""
        return sum(len(piece.ids) for piece in self.pieces)

    @property
    def redacted(self) -> bool:
        """Whether all of its documents are redacted copies."""
        return all(piece.redacted for piece in self.pieces)


def micro_batches(
    groups: Sequence[list[list[Document]]], max_tokens: int, pad: int, decay: float = 0.0
) -> list[MicroBatch]:
    """The micro-batches of a step that are not empty, from the units of each, lists of documents.

    A piece holds at most `max_tokens`, padding included.
    """
    return [MicroBatch(tuple(packed(units, max_tokens, pad, decay)), len(units)) for units in groups]


def mean_losses(model: Any, batch: MicroBatch, losses: Callable[[Any, Batch], Tensor]) -> Iterator[Tensor]:
    """What each piece adds to the mean loss over the units of a micro-batch, one forward pass after the other."""
    for piece in batch.pieces:
        yield losses(model, piece).sum() / batch.units


class MicroBatchGradients:
    """Clipped gradients of micro-batches, from plain autograd: any module will do that keeps no statistics.

    See `ClippedGradients`; `clipping` bounds the gradient of one micro-batch.
    """

    def __init__(self, model: nn.Module, clipping: Clipping) -> None:
        keeping = sorted({type(each).__name__ for each in model.modules() if hasattr(each, "running_mean")})
        if keeping:
            raise ConfigError(
                f"training.microbatches and {', '.join(keeping)}, which keeps statistics of all micro-batches in the"
                " model, past the clip: use another normalisation."
            )
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._clipping = clipping

    def __call__(self, losses: Callable[[], Iterator[Tensor]], rows_per_unit: int, live: bool = True) -> Lazy:
        """The clipped gradient of one micro-batch; zeros where it is not live.

        `losses` are what each piece of it adds to its loss, as scalars; the next is computed when the last is done
        with.
        """
        sums: list[Tensor | None] = [None] * len(self.parameters)
        for loss in losses():
            found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
            sums = [_added(total, gradient) for total, gradient in zip(sums, found, strict=True)]
        squared = [0.0 if each is None else _squared(each) for each in sums]
        coefficients = self._clipping.coefficients(torch.tensor([squared], dtype=torch.float64))[0]
        shares = coefficients.expand(len(sums)).tolist() if live else [0.0] * len(sums)
        return {
            parameter: _scaled(parameter, total, share)
            for parameter, total, share in zip(self.parameters, sums, shares, strict=True)
        }


def _added(total: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    if gradient is None or total is None:
        return gradient.float() if gradient is not None else total
    return total.add_(gradient)


def _squared(gradient: Tensor) -> float:
    return float(torch.linalg.vector_norm(gradient, dtype=torch.float64).square())


def _scaled(parameter: nn.Parameter, total: Tensor | None, share: float) -> Callable[[], Tensor]:
    """The clipped sum, when it is asked for: zeros where nothing is to be added, whatever the gradient holds."""
    if total is None or share == 0:
        return lambda: torch.zeros_like(parameter, dtype=torch.float64)
    return lambda: total.double().mul_(share)  # sums of many are in float64, as those of users are
