"""A probe of RMSNorm classes: which of the many have the gradient we assume is found out, not looked up by name.

The gain of an RMSNorm multiplies x / sqrt(mean(x^2) + eps), whether as `weight` (Llama, Qwen) or as `1 + weight`
(Gemma), so the gradient by the weight is the same. A class whose name ends with RMSNorm is accepted when autograd says
so on a fixed public input; another eps, a second input or a gate shows up as another gradient or as an error.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

SCALES = (1e-4, 1e-2, 1.0, 1e2)  # of the probe's rows: the small ones show another eps
TOLERANCE = 1e-4


def scaled(module: nn.Module, input: Tensor) -> Tensor:
    """What the gain multiplies, float32, in the shape of the input [..., width]."""
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    values = input.float()
    spread = values.square().mean(-1, keepdim=True)
    return values * torch.rsqrt(spread + (torch.finfo(torch.float32).eps if eps is None else eps))


def verified(module: nn.Module) -> bool:
    """Whether the module is an RMSNorm over the last axis with one parameter, `weight`, and the gradient we assume.

    Nothing of the module is read but its options, so partitioned weights are fine.
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
