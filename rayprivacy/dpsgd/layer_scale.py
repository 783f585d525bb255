"""Scales of layers: how large gradients are in each parameter, from public text or from the weights alone.

Clipping one norm of all layers lets the layer with the largest gradients decide, and all get the same noise. Dupuy et
al. (ICASSP 2022) divide each layer's gradient by a scale alpha_k first, and take the scales from the first batch: of
*private* text, so that un-noised norms leave. Here a scale is

    public      the root mean square of the gradient's norm over some steps on public text, without the first: with
                LoRA the first gradient of every A matrix is exactly 0, since B is 0
    weights     the norm of the parameter

divided by the largest of them, at least LEAST (a layer that does not move in public may have to move in private), and
rounded to three digits: machines differ in the last bits, and a scale is part of what is charged.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.batches import Batch
from rayprivacy.dpsgd.engines.state import trainable_parameters

LEAST = 0.01
_STEPS, _RATE = 11, 2e-3  # on public text; the first is not counted


def scales_of_weights(model: Any) -> dict[str, float]:
    """A scale for each trainable parameter, from its norm."""
    return _relative({name: float(each.detach().norm()) for name, each in trainable_parameters(model).items()})


def scales_of_gradients(
    model: Any, batches: Sequence[Batch], losses: Callable[[Any, Batch], Tensor]
) -> dict[str, float]:
    """A scale for each trainable parameter, from its gradient on public text; the model stays as it is."""
    model = copy.deepcopy(model)
    named = trainable_parameters(model)
    optimizer, squares = torch.optim.Adam(named.values(), lr=_RATE), dict.fromkeys(named, 0.0)
    for step in range(_STEPS):
        optimizer.zero_grad()
        for batch in batches:
            losses(model, batch).mean().backward()
        for name, parameter in named.items():
            if step and parameter.grad is not None:
                squares[name] += float(parameter.grad.double().square().sum())
        optimizer.step()
    return _relative({name: square**0.5 for name, square in squares.items()})


def _relative(norms: dict[str, float]) -> dict[str, float]:
    most = max(norms.values(), default=0.0)
    if not 0 < most < float("inf"):
        raise ConfigError(
            "training.layer_scale finds no scale that is positive and finite: take other public text, or leave it out."
        )
    return {name: float(f"{max(LEAST, norm / most):.3g}") for name, norm in norms.items()}
