"""Clipped gradients from Opacus' hooks, with every unit's full gradient in memory: a check, and for rare layers.

Opacus computes per-example gradients of more module kinds than `models.norms` has rules for (by functorch), and needs
as much memory as the model times the rows. It takes each use of a parameter for itself, so tied weights are refused:
their norms would leave out what the uses have in common. `autograd.grad` keeps gradient hooks of engines silent.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from opacus.grad_sample import GradSampleHooks
from torch import Tensor, nn

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.clipping import Clipping, Lazy
from rayprivacy.models.norms.terms import Dense
from rayprivacy.models.norms.weights import Weights


class OpacusGradients:
    """Clipped gradients from per-sample gradients; see `ClippedGradients`."""

    def __init__(self, model: nn.Module, clipping: Clipping) -> None:
        """Hang Opacus' hooks on a model whose trainable parameters are set, for good.

        Tied weights and layers with buffers (batch normalisation) are refused.
        """
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

    def __call__(self, losses: Callable[[], Tensor], rows_per_unit: int, live: bool = True) -> Lazy:
        """See `ClippedGradients`."""
        units = self._units(losses, rows_per_unit)
        coefficients = self._clipping.coefficients(_squared(units))
        if not live:
            coefficients = torch.zeros_like(coefficients)
        columns = coefficients.unbind(1) if coefficients.dim() == 2 else [coefficients] * len(units)
        return {
            parameter: partial(_sum, [unit], Weights.of(column))
            for parameter, unit, column in zip(self.parameters, units, columns, strict=True)
        }

    def squared_norms(self, losses: Callable[[], Tensor], rows_per_unit: int) -> Tensor:
        """See `UnitGradients`."""
        return _squared(self._units(losses, rows_per_unit))

    def _units(self, losses: Callable[[], Tensor], rows_per_unit: int) -> list[Dense]:
        """The gradients of all units by each parameter."""
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


def _squared(units: list[Dense]) -> Tensor:
    return torch.stack([unit.squared()[0] for unit in units], 1)


def _sum(held: list[Dense], weights: Weights) -> Tensor:
    return held.pop().add_sum(None, weights)


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
