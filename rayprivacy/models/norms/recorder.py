"""A recorder of one forward pass, which is differentiated once and turned into norms, and then into weighted sums.

    with recorder.recording(units):
        losses = ...                                # [rows] or [units], from the model the recorder was made for
    recorder.differentiate(losses)                      # gradients of layer outputs only
    squared = recorder.squared_norms()                  # [units, parameters]
    sums = recorder.weighted_sums(coefficients)         # parameter -> function -> sum, float32 or float64

Where the gradients of rows are small (LoRA factors, biases, norms), they are computed as soon as the backward pass gets
there, and what it needed for them is dropped. Of other layers, input and output gradient are kept for the sums.

In rows of pieces the factors of LoRA are many small products for each unit. TOGETHER factors of one shape are one
product: of one unit at a time, so that its shape is still a matter of the model and this unit alone.

Parameters get no gradient and none of their hooks fires, so an engine that reduces gradients (DDP, DeepSpeed) does not
notice. `units` says what belongs to one unit: so many consecutive rows of a batch, or pieces of one row. The losses of
different units must not meet before `losses`: a mean over the batch would make one's gradient depend on another's.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from rayprivacy.core.errors import ConfigError
from rayprivacy.models.norms.parameter import ParameterGradient, Term, weighted_sum
from rayprivacy.models.norms.rules import Use, rules_of
from rayprivacy.models.norms.terms import Outer, Weights
from rayprivacy.models.packing import Pieces

# Gradients of LoRA's factors are no larger than the operands of so many positions: their sums are in float64.
_POSITIONS = 64
TOGETHER = 8  # a step takes 0.94 of the time that it takes one by one (benchmarks/rows.py), with 16 as well
Units = int | Pieces  # rows of each, one after the other; or pieces of one row


class Recorder:
    """Keeps what gradients are made of, of every leaf module that owns trainable parameters, for one pass at a time.

    Attributes:
        parameters: the trainable ones, in the order of `model.named_parameters()`.
    """

    def __init__(self, model: nn.Module) -> None:
        """Find the rules; a module with trainable parameters that has none is refused, by its kind."""
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._rules = rules_of(model)
        self._terms: dict[nn.Parameter, dict[int, list[Term]]] = {}  # of each unit in a row, or of all rows together
        self._waiting: dict[Any, list[Use]] = {}  # uses of factors, by shape
        self._edges: list[GradientEdge] = []
        self._gradients: dict[nn.Parameter, list[ParameterGradient]] = {}
        self._units: Units = 1
        self._rows = 0

    @contextmanager
    def recording(self, units: Units) -> Iterator[None]:
        """Record the forward pass made inside; what an earlier one left is dropped."""
        self._units = units
        self._terms = {}
        self._waiting = {}
        self._edges = []
        self._gradients = {}
        with self._hooks(self._edges):
            yield

    def differentiate(self, losses: Tensor) -> None:
        """Compute gradients of recorded outputs by the losses of rows, or of the units in a row; frees the graph."""
        if losses.dim() != 1:
            raise ConfigError(f"the losses have shape {list(losses.shape)}: return one loss per row, unreduced.")
        if isinstance(self._units, int) and (self._units < 1 or len(losses) % self._units):
            raise ConfigError(f"rows_per_unit is {self._units} for {len(losses)} rows: give a divisor of the rows.")
        if not self._edges:
            raise ConfigError("no trainable module ran in the recorded pass: call the model the recorder was made for.")
        edges = self._edges
        self._edges = []
        self._rows = len(losses)
        with self._hooks([]):  # activation checkpointing runs modules again, which must save what they saved before
            torch.autograd.grad(losses.sum(), edges, allow_unused=True)

    @torch.no_grad()
    def squared_norms(self) -> Tensor:
        """Squared norm of each unit's gradient by each parameter, or a little more: float64 [units, parameters]."""
        for uses in self._waiting.values():
            self._take_together(uses)
        rows, units = self._units if isinstance(self._units, int) else 1, self._count
        columns = []
        for parameter in self.parameters:
            if terms := self._terms.pop(parameter, None):
                found = [ParameterGradient.of(own, rows) for _, own in sorted(terms.items(), key=itemgetter(0))]
                self._gradients[parameter] = found
                columns.append(torch.cat([each.squared() for each in found]))
            else:
                columns.append(torch.zeros(units, dtype=torch.float64, device=parameter.device))
        return torch.stack(columns, 1)

    @property
    def _count(self) -> int:
        return self._rows // self._units if isinstance(self._units, int) else len(self._units.lengths)

    def weighted_sums(self, coefficients: Tensor) -> dict[nn.Parameter, Callable[[], Tensor]]:
        """Functions that return sum_u c_u g_u by each parameter, once, and free what they held.

        Coefficients are float32 [units], or [units, parameters]. A unit of coefficient 0 takes no part, be its gradient
        NaN or infinite. A parameter that was not used has zeros.
        """
        gradients = self._gradients
        self._gradients = {}
        if coefficients.dim() == 2:
            weights = [self._weights(column) for column in coefficients.unbind(1)]
        else:
            weights = [self._weights(coefficients)] * len(self.parameters)
        return {
            parameter: partial(_sum, parameter, [gradients.pop(parameter, None)], own)
            for parameter, own in zip(self.parameters, weights, strict=True)
        }

    def _weights(self, coefficients: Tensor) -> list[Weights]:
        """The coefficients of all rows together, or of each unit in a row."""
        every = [coefficients] if isinstance(self._units, int) else coefficients.split(1)
        return [Weights.of(own) for own in every]

    def _note(self, use: Use) -> None:
        if self._is_factor(use):
            shape = [(side.shape[-1], side.dtype) for side in (use.gradient, use.input)]
            waiting = self._waiting.setdefault(tuple(shape), [])
            waiting.append(use)
            if len(waiting) == TOGETHER:
                self._take_together(waiting)
            return
        for number, own in enumerate(self._by_unit(use)):
            for parameter, term in self._rules[use.module](own):
                kept = term.dense() if isinstance(term, Outer) and self._kept_whole(term) else term
                self._keep(parameter, number, kept)

    def _keep(self, parameter: nn.Parameter, number: int, term: Term) -> None:
        self._terms.setdefault(parameter, {}).setdefault(number, []).append(term)

    def _kept_whole(self, term: Outer) -> bool:
        """Whether gradients are kept as they are: small ones, and those of factors however short a unit in a row is."""
        return term.short or (not isinstance(self._units, int) and term.as_short_as(_POSITIONS))

    def _is_factor(self, use: Use) -> bool:
        """Whether it is of a linear layer without bias, of a row, whose gradients are kept as they are."""
        if isinstance(self._units, int) or type(use.module) is not nn.Linear or use.module.bias is not None:
            return False
        sides = (use.gradient, use.input)
        return all(side.dim() == 3 for side in sides) and Outer(*sides).as_short_as(_POSITIONS)

    def _take_together(self, uses: list[Use]) -> None:
        """Compute gradients of some factors of one shape, those of each unit at once, and forget the uses."""
        of_uses = [self._pieces(use) for use in uses]
        for number, own in enumerate(zip(*of_uses, strict=True)):
            inputs, gradients = (torch.stack(sides) for sides in zip(*own, strict=True))
            found = Outer(gradients, inputs).dense().apart()
            for use, each in zip(uses, found, strict=True):
                self._keep(cast(nn.Parameter, use.module.weight), number, each)
        uses.clear()

    def _by_unit(self, use: Use) -> Iterator[Use]:
        """The use as it is, by rows, or each unit's piece of it, in memory of its own (`models.packing`)."""
        if isinstance(self._units, int):
            if {len(side) for side in (use.input, use.gradient)} != {self._rows}:
                raise _mixed(use, f"{self._rows} rows")
            yield use
            return
        for input, gradient in self._pieces(use):
            yield Use(use.module, input[None].clone(), gradient[None].clone())

    def _pieces(self, use: Use) -> list[tuple[Tensor, Tensor]]:
        """What is each unit's of input and gradient, views [positions, width]."""
        assert not isinstance(self._units, int)
        if {side.shape[:2] for side in (use.input, use.gradient)} != {(1, self._units.tokens)}:
            raise _mixed(use, f"a row of {self._units.tokens} tokens")
        return list(zip(*(self._units.of(side[0]) for side in (use.input, use.gradient)), strict=True))

    @contextmanager
    def _hooks(self, edges: list[GradientEdge]) -> Iterator[None]:

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Tensor) -> Tensor | None:
            inputs = [*args, *kwargs.values()]
            if len(inputs) != 1:
                raise ConfigError(f"{type(module).__name__} was called with {len(inputs)} inputs: its rule knows one.")
            if not output.requires_grad:
                return None
            edges.append(get_gradient_edge(output))
            return cast(Tensor, _Tap.apply(output, inputs[0].detach(), module, self._note))  # type: ignore[no-untyped-call]

        handles = [module.register_forward_hook(hook, with_kwargs=True) for module in self._rules]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class _Tap(torch.autograd.Function):
    """Passes a module's output and its gradient through, and reports the gradient with the module's input.

    Why an autograd node rather than two lists kept by forward hooks: what a node saves is packed, dropped and
    recomputed like everything else in the graph, so activation checkpointing keeps its saving of memory, and the input
    arrives in the backward pass together with the gradient that belongs to it, of which not all need be kept.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, input: Tensor, module: nn.Module, report: Callable[[Use], None]) -> Tensor:
        ctx.save_for_backward(input)
        ctx.module = module
        ctx.report = report
        return output.detach()  # not a view for autograd, so a model may go on to change it in place

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.report(Use(ctx.module, ctx.saved_tensors[0], gradients[0]))
        return gradients[0], None, None, None


def _mixed(use: Use, expected: str) -> ConfigError:
    return ConfigError(
        f"{type(use.module).__name__} has an output of shape {list(use.gradient.shape)} for {expected},"
        " so the rows cannot be told apart: choose another model.base, or in a loss of your own pass"
        " position_ids (and token_type_ids) of shape [rows, tokens]."
    )


def _sum(parameter: nn.Parameter, held: list[list[ParameterGradient] | None], weights: list[Weights]) -> Tensor:
    found = held.pop()  # a second call finds nothing, and fails
    if found is None:
        return torch.zeros(getattr(parameter, "ds_shape", parameter.shape), device=parameter.device)
    with torch.no_grad():
        return weighted_sum(found, weights)
