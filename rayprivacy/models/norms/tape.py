"""The tape: one forward pass is recorded, differentiated once, and turned into norms and then weighted sums.

    with tape.recording():
        losses = ...                                # [rows], from the model the tape was made for
    tape.differentiate(losses)                      # gradients of layer outputs only
    squared = tape.squared_norms(rows_per_unit)     # [units, parameters]
    sums = tape.weighted_sums(coefficients)         # parameter -> function -> float32 sum

Parameters get no gradient and none of their hooks fires, so an engine that reduces gradients (DDP, DeepSpeed) does not
notice. The rows of one unit are consecutive. The losses of different rows must not meet before `losses`: a mean over
the batch, say, would make one row's gradient depend on another's.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from rayprivacy.core.errors import ConfigError
from rayprivacy.models.norms.parameter import ParameterGradient, Term
from rayprivacy.models.norms.rules import rules_of
from rayprivacy.models.norms.watch import Use, watch
from rayprivacy.models.norms.weights import Weights


class Tape:
    """Keeps input and output gradient of every leaf module that owns trainable parameters, for one pass at a time.

    Attributes:
        parameters: the trainable ones, in the order of `model.named_parameters()`.
    """

    def __init__(self, model: nn.Module) -> None:
        """Find the rules.

        Raises:
            ConfigError: a module with trainable parameters has no rule; the message names the kinds.
        """
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._rules = rules_of(model)
        self._uses: list[Use] = []
        self._edges: list[GradientEdge] = []
        self._gradients: dict[nn.Parameter, ParameterGradient] = {}
        self._rows = 0

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the forward pass made inside; what an earlier one left is dropped."""
        self._uses, self._edges, self._gradients = [], [], {}
        with self._hooks(self._edges):
            yield

    def differentiate(self, losses: Tensor) -> None:
        """Compute the gradients of the recorded outputs; frees the graph.

        Args:
            losses: one per row, [rows]; rows must be the first axis of every recorded module's input.

        Raises:
            ConfigError: losses are no vector, nothing was recorded, or a module lost the axis of the rows.
        """
        if losses.dim() != 1:
            raise ConfigError(f"the losses have shape {list(losses.shape)}: return one loss per row, unreduced.")
        if not self._edges:
            raise ConfigError("no trainable module ran in the recorded pass: call the model the tape was made for.")
        edges, self._edges = self._edges, []
        with self._hooks([]):  # activation checkpointing runs modules again, which must save what they saved before
            torch.autograd.grad(losses.sum(), edges, allow_unused=True)
        self._rows = len(losses)
        for use in self._uses:
            _check_rows(use, self._rows)

    @torch.no_grad()
    def squared_norms(self, rows_per_unit: int) -> Tensor:
        """Squared norm of each unit's gradient by each parameter, float32 [units, parameters].

        Raises:
            ConfigError: the rows are not a multiple of `rows_per_unit`.
        """
        if rows_per_unit < 1 or self._rows % rows_per_unit:
            raise ConfigError(f"rows_per_unit is {rows_per_unit} for {self._rows} rows: give a divisor of the rows.")
        units = self._rows // rows_per_unit
        terms: dict[nn.Parameter, list[Term]] = {}
        while self._uses:
            use = self._uses.pop()
            for parameter, term in self._rules[use.module](use, units):
                terms.setdefault(parameter, []).append(term)
        columns = []
        for parameter in self.parameters:
            if found := terms.pop(parameter, None):
                self._gradients[parameter] = ParameterGradient(found)
                columns.append(self._gradients[parameter].squared())
            else:
                columns.append(torch.zeros(units, device=parameter.device))
        return torch.stack(columns, 1)

    def weighted_sums(self, coefficients: Tensor) -> dict[nn.Parameter, Callable[[], Tensor]]:
        """Functions that return sum_u c_u g_u by each parameter, once, and free what they held.

        A unit of coefficient 0 takes no part, be its gradient NaN or infinite. A parameter that was not used has zeros.

        Args:
            coefficients: float32 [units], or [units, parameters].
        """
        gradients, self._gradients = self._gradients, {}
        if coefficients.dim() == 2:
            weights = [Weights.of(column) for column in coefficients.unbind(1)]
        else:
            weights = [Weights.of(coefficients)] * len(self.parameters)
        return {
            parameter: partial(_sum, parameter, [gradients.pop(parameter, None)], own)
            for parameter, own in zip(self.parameters, weights, strict=True)
        }

    @contextmanager
    def _hooks(self, edges: list[GradientEdge]) -> Iterator[None]:
        """Watch the outputs of the modules with rules, and note where they are in the graph."""

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor | None:
            inputs = [*args, *kwargs.values()]
            if len(inputs) != 1:
                raise ConfigError(f"{type(module).__name__} was called with {len(inputs)} inputs: its rule knows one.")
            if not output.requires_grad:
                return None
            edges.append(get_gradient_edge(output))
            return watch(module, inputs[0], output, self._uses)

        handles = [module.register_forward_hook(hook, with_kwargs=True) for module in self._rules]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _check_rows(use: Use, rows: int) -> None:
    shape = list(use.gradient.shape)
    if shape[0] != rows or use.input.shape[0] != rows:
        raise ConfigError(
            f"{type(use.module).__name__} has an output of shape {shape} for {rows} rows, so the rows cannot be told"
            " apart: pass position_ids (and token_type_ids) of shape [rows, tokens]."
        )


def _sum(parameter: nn.Parameter, held: list[ParameterGradient | None], weights: Weights) -> Tensor:
    gradient = held.pop()  # a second call finds nothing, and fails
    if gradient is None:
        return torch.zeros(getattr(parameter, "ds_shape", parameter.shape), device=parameter.device)
    with torch.no_grad():
        return gradient.weighted_sum(weights)
