"""Which module kinds have per-example gradients we know, and what these are. Everything else is refused.

Add a layer here: a rule for it in `_RULES`, and the layer in MIDDLES of `tests/proofs/models/test_norms_rules.py`,
which compares its gradients with torch's own.

A rule turns one use of a module, its input and the gradient by its output, into the terms of its parameters'
gradients, row by row. A subclass is accepted only where it computes what its base does: an embedding that scales its
output, say, would need another rule, and the wrong one gives wrong norms without any error.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from rayprivacy.core.errors import ConfigError
from rayprivacy.models.norms.parameter import Term
from rayprivacy.models.norms.terms import Dense, Outer, Rows

SCALES = (1e-4, 1e-2, 1.0, 1e2)  # of a probe's rows: the small ones show another eps
TOLERANCE = 1e-4


@dataclass(frozen=True, repr=False)
class Use:
    """One call of a module: its input and the gradient of the losses' sum by its output, both [rows, ...]."""

    module: nn.Module
    input: Tensor
    gradient: Tensor


Terms = Iterator[tuple[nn.Parameter, Term]]
Rule = Callable[[Use], Terms]


def rules_of(model: nn.Module) -> dict[nn.Module, Rule]:
    """The rule of every module that owns trainable parameters; kinds that have none are refused by their names.

    A module without a rule may hold a parameter for another one that has a rule (BERT's output head and its decoder).
    """
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        raise ConfigError("the model has batch normalisation, which mixes examples: use a model with layer norms.")
    owners = {module: _trainable(module) for module in model.modules()}
    rules = {module: rule for module, owned in owners.items() if owned and (rule := _rule(module))}
    covered = set().union(*(owners[module] for module in rules))
    unknown = sorted({type(module).__name__ for module, owned in owners.items() if owned - covered})
    if unknown:
        raise ConfigError(
            f"modules of kind {', '.join(unknown)} own trainable parameters and have no rule for per-example"
            " gradients: freeze them, or train LoRA factors of linear layers."
        )
    return rules


def _rule(module: nn.Module) -> Rule | None:
    for kind, rule in _RULES.items():
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return rule if _plain(module) else None
    return _rms_norm if verified(module) else None


def _plain(module: nn.Module) -> bool:
    if isinstance(module, nn.Embedding):
        return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
    return not isinstance(module, nn.LayerNorm) or len(module.normalized_shape) == 1


def verified(module: nn.Module) -> bool:
    """Whether the module is an RMSNorm over the last axis with one parameter, `weight`, and the gradient we assume.

    The gain of an RMSNorm multiplies x / sqrt(mean(x^2) + eps), whether as `weight` (Llama, Qwen) or as `1 + weight`
    (Gemma), so the gradient by the weight is the same. Which of the many classes compute this is found out, not looked
    up: one whose name ends with RMSNorm is accepted when autograd says so on a fixed public input; another eps, a
    second input or a gate shows up as another gradient or as an error. Nothing of the module is read but its options,
    so partitioned weights are fine.
    """
    names = [name for name, _ in module.named_parameters(recurse=False)]
    if not type(module).__name__.endswith("RMSNorm") or names != ["weight"]:
        return False
    weight: Any = module.weight
    shape = tuple(getattr(weight, "ds_shape", weight.shape))
    if len(shape) != 1:
        return False
    dice = torch.Generator().manual_seed(0)
    input = torch.randn(len(SCALES), *shape, generator=dice, device="cpu")
    outer = torch.randn(len(SCALES), *shape, generator=dice, device="cpu")
    input *= torch.tensor(SCALES)[:, None]
    expected = (scaled(module, input) * outer).sum(0)
    found = _gradient(module, input, outer, torch.randn(*shape, generator=dice, device="cpu"))
    return found is not None and torch.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


def _gradient(module: nn.Module, input: Tensor, outer: Tensor, weight: Tensor) -> Tensor | None:
    """The gradient by the weight, from a stand-in of the same class without hooks."""
    stand_in = copy.copy(module)
    gain = nn.Parameter(weight)
    stand_in.__dict__["_parameters"] = {"weight": gain}
    try:
        with torch.enable_grad(), torch.autocast("cpu", enabled=False):
            return torch.autograd.grad(stand_in.forward(input), gain, outer)[0]
    except (TypeError, ValueError, RuntimeError, AttributeError):
        return None


def scaled(module: nn.Module, input: Tensor) -> Tensor:
    """What the gain multiplies, float32, in the shape of the input [..., width]."""
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    values = input.float()
    spread = values.square().mean(-1, keepdim=True)
    return values * torch.rsqrt(spread + (torch.finfo(torch.float32).eps if eps is None else eps))


def _trainable(module: nn.Module) -> set[nn.Parameter]:
    return {parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad}


def _linear(use: Use) -> Terms:
    input, gradient = _positions(use.input), _positions(use.gradient)
    yield from _weight_and_bias(use.module, lambda: Outer(gradient, input), gradient)


def _conv1d(use: Use) -> Terms:
    input, gradient = _positions(use.input), _positions(use.gradient)
    yield from _weight_and_bias(use.module, lambda: Outer(input, gradient), gradient)  # its weight is [in, out]


def _embedding(use: Use) -> Terms:
    module = use.module
    assert isinstance(module, nn.Embedding)
    ids, gradient = use.input.flatten(1), _positions(use.gradient)
    if module.padding_idx is not None:
        gradient = gradient.masked_fill((ids == module.padding_idx).unsqueeze(-1), 0)
    weight = module.weight
    assert isinstance(weight, nn.Parameter)
    yield weight, Rows(ids, gradient, getattr(weight, "ds_shape", weight.shape))


def _layer_norm(use: Use) -> Terms:
    module = use.module
    assert isinstance(module, nn.LayerNorm)
    gradient = _positions(use.gradient)

    def weight_term() -> Term:
        scaled = F.layer_norm(use.input.float(), module.normalized_shape, None, None, module.eps)
        return _products(scaled, gradient)

    yield from _weight_and_bias(module, weight_term, gradient)


def _rms_norm(use: Use) -> Terms:
    gradient = _positions(use.gradient)
    yield from _weight_and_bias(use.module, lambda: _products(scaled(use.module, use.input), gradient), gradient)


def _weight_and_bias(module: nn.Module, weight_term: Callable[[], Term], gradient: Tensor) -> Terms:
    if isinstance(module.weight, nn.Parameter) and module.weight.requires_grad:
        yield module.weight, weight_term()
    bias = getattr(module, "bias", None)
    if isinstance(bias, nn.Parameter) and bias.requires_grad:
        yield bias, Dense(gradient.sum(1, dtype=torch.float32))


def _products(scaled: Tensor, gradient: Tensor) -> Dense:
    """What a norm layer's gain multiplies (changed in place) times the gradient, summed over positions."""
    return Dense(scaled.view(gradient.shape).mul_(gradient).sum(1))


def _positions(values: Tensor) -> Tensor:
    return values.reshape(len(values), -1, values.shape[-1])


_RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    Conv1D: _conv1d,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
}
