"""Which module kinds have per-example gradients we know, and what these are. Everything else is refused.

Add a layer here: a rule for it in `_RULES`, and the layer in MIDDLES of `tests/proofs/models/test_norms_rules.py`,
which compares its gradients with torch's own.

A rule turns one use of a module, its input and the gradient by its output, into the terms of its parameters'
gradients, row by row. A subclass with a `forward` of its own would need another rule, and the wrong one gives wrong
norms without any error. So it is accepted only where a probe shows what it computes: an RMS norm, or an embedding whose
rows are multiplied by a number (Gemma).
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
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

    A module without a rule may hold a parameter for one of its parts that has a rule (BERT's head and its decoder).
    """
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        raise ConfigError("the model has batch normalisation, which mixes examples: use a model with layer norms.")
    owners = {module: owned for module in model.modules() if (owned := _trainable(module))}
    rules = {module: rule for module in owners if (rule := _rule(module))}
    unknown = {
        type(module).__name__
        for module, owned in owners.items()
        if owned.difference(*(owners[part] for part in module.modules() if part in rules))
    }
    if unknown:
        raise ConfigError(
            f"modules of kind {', '.join(sorted(unknown))} own trainable parameters and have no rule for per-example"
            " gradients: freeze them, or train LoRA factors of linear layers."
        )
    return rules


def _rule(module: nn.Module) -> Rule | None:
    for kind, rule in _RULES.items():
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return rule if _plain(module) else None
    if isinstance(module, nn.Embedding) and _plain(module):
        factor = factor_of(module)
        return None if factor is None else partial(_embedding, factor=factor)
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


def factor_of(module: nn.Embedding) -> float | None:
    """The number by which an embedding with a `forward` of its own multiplies its rows; None if it does anything else.

    Found out like an RMS norm, on rows of many sizes, in another order than positions have. Gradients by the output are
    powers of two, which no number format rounds.
    """
    like: dict[str, Any] = {"dtype": module.weight.dtype, "device": module.weight.device}
    rows = len(SCALES)
    weight = torch.tensor(SCALES, **like)[:, None] * torch.arange(1, 5, **like)
    outer = 2.0 ** torch.arange(-8, 4 * rows - 8, **like).view(1, rows, 4)
    ids = torch.arange(rows, device=module.weight.device).flip(0)[None]
    found = _gradient(module, ids, outer, weight)
    if found is None:
        return None
    factor = found / outer[0].flip(0)
    return factor[0, 0].item() if (factor == factor[0, 0]).all() else None


def _gradient(module: nn.Module, input: Tensor, outer: Tensor, weight: Tensor) -> Tensor | None:
    """The gradient by the weight, from a stand-in of the same class without hooks and padding."""
    stand_in = copy.copy(module)
    gain = nn.Parameter(weight)
    vars(stand_in).update(_parameters={"weight": gain}, padding_idx=None)
    try:
        with torch.enable_grad(), torch.autocast(weight.device.type, enabled=False):
            return torch.autograd.grad(stand_in.forward(input), gain, outer)[0]
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError):
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


def _embedding(use: Use, factor: float = 1.0) -> Terms:
    module = use.module
    assert isinstance(module, nn.Embedding)
    ids, gradient = use.input.flatten(1), factor * _positions(use.gradient)
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
    return Dense(scaled.reshape(gradient.shape).mul_(gradient).sum(1))


def _positions(values: Tensor) -> Tensor:
    return values.reshape(len(values), -1, values.shape[-1])


_RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    Conv1D: _conv1d,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
}
