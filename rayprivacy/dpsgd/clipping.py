"""Clipping: how much of each unit's gradient enters the sum, so that no unit moves the sum by more than C.

    flat        min(1, C / ||g||)
    per_layer   each parameter's part of g by itself, to C / sqrt(parameters): the whole is at most C long
    automatic   C / (||g|| + 0.01): nearly every gradient gets length C (Bu, Wang, Zha & Karypis 2023, "Automatic
                Clipping", AUTO-S with gamma 0.01), so that C and the learning rate are one number to tune, not two

With *scales* alpha_k, one for each parameter, g_k / alpha_k takes the place of g_k in all of these (Dupuy et al.,
ICASSP 2022): what a unit adds to the sum is at most C long after this division, and at most alpha_k C in parameter k.
The noise of a parameter is multiplied by its alpha_k (`noisy_optimizer`): noise of one scale in the divided space,
where the sensitivity is C as before. The scales are public: they come from no private text (`layer_scale`).

In each of them the sum over units changes by a vector of norm at most C when a unit is added or removed: the
sensitivity that the noise sigma C is scaled to. A unit whose gradient is NaN or infinite anywhere gets coefficient 0
everywhere. It counts in the accounting as any other.

No unit leaves longer than C, rounding included. The norms that come in are bounds from above (`models.norms.terms`);
roots, quotients and products with float32 coefficients add a few float32 steps (6e-8 each), and RESERVE, sixteen such
steps, is more than all of them. `low_precision` aims another 1 % lower: a reserve for what the tensor cores of a GPU,
whose accumulators are not specified, may add to sums of products of bfloat16 numbers. The noise stays at sigma C.

Three classes compute clipped gradients: `BookKeeping`, `OpacusGradients`, and `MicroBatchGradients`. They keep three
promises that the noise relies on: a unit's part of the sum depends on its own rows only; it is at most C long, over all
parameters together; and NaN or infinite gradients contribute nothing.

*Micro-batches* are the units of one step, in N groups that are clipped as one each (`release.step_mechanism`).

Which micro-batch a unit is in must be a matter of this unit alone: cut by position, one more unit would shift all that
come after it, and move every micro-batch (1.75 C in place of 0.25 C was measured for 8 of them). Here every part file
of the corpus has m = N / parts micro-batches, and a keyed hash of (run, step, unit) chooses among those of the unit's
own part file. A user's part file is a keyed hash of the user. So assignment depends on the unit and on public numbers,
is another one at every step, and is the same for any number of workers; and no micro-batch spans two ranks.

Within a micro-batch everything may depend on everything, since what leaves it is clipped: rows are packed as they fit.
Micro-batches have a forward and a backward pass each, and share nothing.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.batches import Batch, Document, Row, packed
from rayprivacy.models.norms import Recorder, Units
from rayprivacy.models.norms.terms import Dense, Weights

ClippingKind = Literal["flat", "per_layer", "automatic"]
# Clipped sums, each computed once, when an engine is ready to take it: at most one needs to be in memory.
Lazy = dict[nn.Parameter, Callable[[], Tensor]]
GAMMA = 0.01
RESERVE = 2.0**-20
LOW_PRECISION = 0.99


@dataclass(frozen=True)
class Clipping:
    """The clipping norm C and what is done with it."""

    norm: float  # C, the L2 norm that one unit's part of the sum never exceeds
    kind: ClippingKind = "flat"  # see the module
    low_precision: bool = False  # activations or weights are in less than float32
    # alpha_k of each parameter, in the order of `ClippedGradients.parameters`; none leaves all alike
    scales: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.norm) and self.norm > 0):
            raise ConfigError(f"clipping_norm is {self.norm}: give a positive, finite number.")
        if self.kind not in ("flat", "per_layer", "automatic"):
            raise ConfigError(f"clipping is {self.kind!r}: use 'flat', 'per_layer' or 'automatic'.")
        if not all(0 < scale < math.inf for scale in self.scales):
            raise ConfigError("a scale of a layer is not positive and finite: take scales from layer_scale.")

    def coefficients(self, squared: Tensor) -> Tensor:
        """From squared norms, [units, parameters]: coefficients, float32 [units], or of that shape for `per_layer`."""
        squared = squared.double()
        if self.scales:
            squared = squared / torch.tensor(self.scales, dtype=torch.float64, device=squared.device).square()
        norm = self.norm * (1 - RESERVE) * (LOW_PRECISION if self.low_precision else 1)
        whole = squared.sum(1).sqrt()
        if self.kind == "per_layer":
            own = squared.sqrt()
            found = _shrink(own, norm / math.sqrt(squared.shape[1]))
            return _rounded(found.where(whole.isfinite()[:, None], 0))
        found = norm / (whole + GAMMA) if self.kind == "automatic" else _shrink(whole, norm)
        return _rounded(found.where(whole.isfinite(), 0))


def _rounded(coefficients: Tensor) -> Tensor:
    """In float32; what it holds with fewer digits is 0, since rounded up it would be too much."""
    return coefficients.masked_fill(coefficients < torch.finfo(torch.float32).tiny, 0).float()


def _shrink(norms: Tensor, most: float) -> Tensor:
    return (most / norms).clamp(max=1)  # 0 / 0 cannot be: the norm C is positive


class ClippedGradients(Protocol):
    """What an engine asks for clipped sums.

    Attributes:
        parameters: the trainable ones, in the order of `model.named_parameters()`; every answer has all of them.
    """

    parameters: list[nn.Parameter]

    def __call__(self, losses: Callable[[], Any], units: Units, live: bool = True) -> Lazy:
        """Sums over the units of one batch of clipped gradients, float32 or float64, in the parameters' full shapes.

        `losses` runs the forward pass and returns one loss per row [rows], or per unit in a row [units]; `units` says
        how many consecutive rows are a unit, or which pieces of the row are (for micro-batches see
        `MicroBatchGradients`). With `live` false the batch is a dummy, which runs for the sake of
        collectives and contributes zeros.
        """


class UnitGradients(ClippedGradients, Protocol):
    """Clipped gradients of units, as opposed to those of micro-batches."""

    def squared_norms(self, losses: Callable[[], Tensor], units: Units) -> Tensor:
        """Squared norm of each unit's gradient by each parameter, float64 [units, parameters]."""


class BookKeeping:
    """Clipped gradients from one backward pass (`models.norms`); a model is refused where a module has no rule."""

    def __init__(self, model: nn.Module, clipping: Clipping) -> None:
        self._tape, self._clipping = Recorder(model), clipping
        self.parameters = self._tape.parameters

    def __call__(self, losses: Callable[[], Tensor], units: Units, live: bool = True) -> Lazy:
        """The clipped sums of one batch."""
        squared = self.squared_norms(losses, units)
        coefficients = self._clipping.coefficients(squared)
        return self._tape.weighted_sums(coefficients if live else torch.zeros_like(coefficients))

    def squared_norms(self, losses: Callable[[], Tensor], units: Units) -> Tensor:
        """Squared norms of units' gradients, float64 [units, parameters]."""
        with self._tape.recording(units):
            values = losses()
        self._tape.differentiate(values)
        return self._tape.squared_norms()


@dataclass(frozen=True, repr=False, eq=False)
class MicroBatch:
    """The units of one micro-batch, as physical batches that fit into memory one by one."""

    pieces: tuple[Batch, ...]  # its rows
    units: int  # how many units it has; private

    @property
    def by_unit(self) -> int:
        """All of its rows: it is clipped as one."""
        return sum(len(piece.ids) for piece in self.pieces)

    @property
    def redacted(self) -> bool:
        """Whether all of its documents are redacted copies."""
        return all(piece.redacted for piece in self.pieces)


AnyBatch = Batch | Row | MicroBatch


def micro_batches(
    groups: Sequence[list[list[Document]]], max_tokens: int, pad: int, decay: float = 0.0
) -> list[MicroBatch]:
    """The micro-batches of a step that are not empty; a piece holds at most `max_tokens`, padding included."""
    return [MicroBatch(tuple(packed(units, max_tokens, pad, decay)), len(units)) for units in groups]


def mean_losses(model: Any, batch: MicroBatch, losses: Callable[[Any, Batch], Tensor]) -> Iterator[Tensor]:
    """What each piece adds to the mean loss over the units of a micro-batch, one forward pass after the other."""
    for piece in batch.pieces:
        yield losses(model, piece).sum() / batch.units


class MicroBatchGradients:
    """Clipped gradients of micro-batches, from plain autograd: any module will do that keeps no statistics."""

    def __init__(self, model: nn.Module, clipping: Clipping) -> None:
        keeping = sorted({type(each).__name__ for each in model.modules() if hasattr(each, "running_mean")})
        if keeping:
            raise ConfigError(
                f"training.microbatches and {', '.join(keeping)}, which keeps statistics of all micro-batches in the"
                " model, past the clip: use another normalisation."
            )
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._clipping = clipping

    def __call__(self, losses: Callable[[], Iterator[Tensor]], units: Units, live: bool = True) -> Lazy:
        """The clipped gradient of one micro-batch, from what each piece adds to its loss, one scalar at a time."""
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
    if gradient is None:
        return total
    return gradient.float() if total is None else total.add_(gradient)


def _squared(gradient: Tensor) -> float:
    return float(torch.linalg.vector_norm(gradient, dtype=torch.float64).square())


def _scaled(parameter: nn.Parameter, total: Tensor | None, share: float) -> Callable[[], Tensor]:
    """The clipped sum, when it is asked for: zeros where nothing is to be added, whatever the gradient holds."""
    if total is None or share == 0:
        return lambda: torch.zeros_like(parameter, dtype=torch.float64)
    return lambda: total.double().mul_(share)  # sums of many are in float64, as those of users are


class OpacusGradients:
    """Clipped gradients from Opacus' hooks, with every unit's full gradient in memory: a check, and for rare layers.

    Opacus knows more kinds of modules than `models.norms` has rules for (by functorch), and needs as much memory as the
    model times the rows. It takes each use of a parameter for itself, so tied weights are refused: their norms would
    leave out what the uses have in common. So are layers with buffers (batch normalisation). The hooks stay on the
    model. `autograd.grad` keeps gradient hooks of engines silent.
    """

    def __init__(self, model: nn.Module, clipping: Clipping) -> None:
        from opacus.grad_sample import GradSampleHooks  # Opacus is optional

        tied = _tied(model)
        if tied:
            raise ConfigError(
                f"resources.gradients is 'opacus' and {', '.join(tied)} is tied: use 'bookkeeping', or untie it."
            )
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._clipping = clipping
        self._modules = [each for each in model.modules() if any(p.requires_grad for p in each.parameters(False))]
        try:
            self._hooks = GradSampleHooks(model, loss_reduction="sum")
        except NotImplementedError as error:
            raise ConfigError(
                "resources.gradients is 'opacus' and a trainable layer has buffers: use 'bookkeeping'."
            ) from error
        self._hooks.disable_hooks()

    def __call__(self, losses: Callable[[], Tensor], units: Units, live: bool = True) -> Lazy:
        """The clipped sums of one batch."""
        gradients = self._gradients(losses, units)
        coefficients = self._clipping.coefficients(_squared_norms(gradients))
        if not live:
            coefficients = torch.zeros_like(coefficients)
        columns = coefficients.unbind(1) if coefficients.dim() == 2 else [coefficients] * len(gradients)
        return {
            parameter: partial(_sum, [gradient], Weights.of(column))
            for parameter, gradient, column in zip(self.parameters, gradients, columns, strict=True)
        }

    def squared_norms(self, losses: Callable[[], Tensor], units: Units) -> Tensor:
        """Squared norms of units' gradients, float64 [units, parameters]."""
        return _squared_norms(self._gradients(losses, units))

    def _gradients(self, losses: Callable[[], Tensor], rows_per_unit: Units) -> list[Dense]:
        if not isinstance(rows_per_unit, int):
            raise ConfigError("Opacus has no gradients of pieces of a row: give it units of whole rows.")
        for module in self._modules:
            module.training = True  # Opacus records nothing else; the mode of the others is left alone
        self._hooks.enable_hooks()
        try:
            values = losses()
            if values.dim() != 1 or rows_per_unit < 1 or len(values) % rows_per_unit:
                raise ConfigError(f"the losses have shape {list(values.shape)}: return one per row, units complete.")
            torch.autograd.grad(values.sum(), self.parameters, allow_unused=True)
        finally:
            self._hooks.disable_hooks()  # other passes leave nothing behind
        return [self._taken(parameter, len(values), rows_per_unit) for parameter in self.parameters]

    def _taken(self, parameter: nn.Parameter, rows: int, rows_per_unit: int) -> Dense:
        """The gradients of the units, which Opacus left on the parameter."""
        held: Any = parameter
        samples, held.grad_sample = held.grad_sample, None
        if not isinstance(samples, Tensor) or len(samples) != rows:
            raise ConfigError(
                f"Opacus has no gradient per row for a parameter of shape {list(parameter.shape)}: pass position_ids"
                " of shape [rows, tokens], or use 'bookkeeping'."
            )
        return Dense(samples.view(-1, rows_per_unit, *parameter.shape).sum(1, dtype=torch.float32))


def _squared_norms(units: list[Dense]) -> Tensor:
    return torch.stack([unit.squared() for unit in units], 1)


def _sum(held: list[Dense], weights: Weights) -> Tensor:
    return held.pop().sum(weights)


def _tied(model: nn.Module) -> list[str]:
    """Kinds of the modules that own a trainable parameter together with another one."""
    owned = [
        (id(parameter), type(module).__name__)
        for module in model.modules()
        for parameter in module.parameters(recurse=False)
        if parameter.requires_grad
    ]
    owners = Counter(parameter for parameter, _ in owned)
    return sorted({kind for parameter, kind in owned if owners[parameter] > 1})
