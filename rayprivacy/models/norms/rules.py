"""Which module kinds have per-example gradients we know, and what these are. Everything else is refused.

Add a layer here: a rule for it in `_RULES`, and the layer in MIDDLES of `tests/models/test_norms_rules.py`, which
compares its gradients with torch's own.

A rule turns one use of a module, its input and the gradient by its output, into the terms of its parameters'
gradients, row by row. A subclass is accepted only where it computes what its base does: an embedding that scales its
output, say, would need another rule, and the wrong one gives wrong norms without any error.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from rayprivacy.core.errors import ConfigError
from rayprivacy.models.norms import rms
from rayprivacy.models.norms.gradient_tap import Use
from rayprivacy.models.norms.parameter import Term
from rayprivacy.models.norms.rows import Rows
from rayprivacy.models.norms.terms import Dense, Outer

Rule = Callable[[Use], Iterator[tuple[nn.Parameter, Term]]]


def rules_of(model: nn.Module) -> dict[nn.Module, Rule]:
    """The rule of every module that owns trainable parameters.

    A module without a rule may hold a parameter for another one that has a rule (BERT's output head and its decoder).

    Raises:
        ConfigError: a module has no rule, or batch normalisation mixes the examples; the message names the kinds.
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
    return _rms_norm if rms.verified(module) else None


def _plain(module: nn.Module) -> bool:
    """Whether no option of the module changes what its rule assumes."""
    if isinstance(module, nn.Embedding):
        return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
    return not isinstance(module, nn.LayerNorm) or len(module.normalized_shape) == 1


def _trainable(module: nn.Module) -> set[nn.Parameter]:
    return {parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad}


def _linear(use: Use) -> Iterator[tuple[nn.Parameter, Term]]:
    input, gradient = _positions(use.input), _positions(use.gradient)
    yield from _weight_and_bias(use.module, lambda: Outer(gradient, input), gradient)


def _conv1d(use: Use) -> Iterator[tuple[nn.Parameter, Term]]:
    input, gradient = _positions(use.input), _positions(use.gradient)
    yield from _weight_and_bias(use.module, lambda: Outer(input, gradient), gradient)  # its weight is [in, out]


def _embedding(use: Use) -> Iterator[tuple[nn.Parameter, Term]]:
    module = use.module
    assert isinstance(module, nn.Embedding)
    ids, gradient = use.input.flatten(1), _positions(use.gradient)
    if module.padding_idx is not None:
        gradient = gradient.masked_fill((ids == module.padding_idx).unsqueeze(-1), 0)
    weight = module.weight
    assert isinstance(weight, nn.Parameter)
    yield weight, Rows(ids, gradient, getattr(weight, "ds_shape", weight.shape))


def _layer_norm(use: Use) -> Iterator[tuple[nn.Parameter, Term]]:
    module = use.module
    assert isinstance(module, nn.LayerNorm)
    gradient = _positions(use.gradient)

    def weight_term() -> Term:
        scaled = F.layer_norm(use.input.float(), module.normalized_shape, None, None, module.eps)
        return _products(scaled, gradient)

    yield from _weight_and_bias(module, weight_term, gradient)


def _rms_norm(use: Use) -> Iterator[tuple[nn.Parameter, Term]]:
    gradient = _positions(use.gradient)
    yield from _weight_and_bias(use.module, lambda: _products(rms.scaled(use.module, use.input), gradient), gradient)


def _weight_and_bias(
    module: nn.Module, weight_term: Callable[[], Term], gradient: Tensor
) -> Iterator[tuple[nn.Parameter, Term]]:
    if isinstance(module.weight, nn.Parameter) and module.weight.requires_grad:
        yield module.weight, weight_term()
    bias = getattr(module, "bias", None)
    if isinstance(bias, nn.Parameter) and bias.requires_grad:
        yield bias, Dense(gradient.sum(1, dtype=torch.float32))


def _products(scaled: Tensor, gradient: Tensor) -> Dense:
    """What a norm layer's gain multiplies (changed in place) times the gradient, summed over positions."""
    return Dense(scaled.view(gradient.shape).mul_(gradient).sum(1))


def _positions(values: Tensor) -> Tensor:
    """[rows, ..., width] as [rows, positions, width]."""
    return values.reshape(len(values), -1, values.shape[-1])


_RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    Conv1D: _conv1d,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
}
