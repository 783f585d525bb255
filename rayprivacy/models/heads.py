"""What a causal language model does with the last states of its trunk: usually one product with the head's matrix.

    logits = scale * W h

Most models have scale 1; Granite divides its logits, Cohere multiplies them. Others cap them (Gemma 2), add a bias
(Phi), or have a layer before the head. Which it is, is found out, not looked up: the model's own `forward` is run
around a trunk that returns given states.
"""

import copy
from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutputWithPast

SIZES = (2.0**-10, 1.0, 2.0**10)  # of a probe's states: a bias shows at the small ones, a cap at the large ones
_PRECISE, _ROUNDED = 1e-3, 2e-2  # how far logits may be from the product, relatively; the latter below float32


@torch.no_grad()
def head_scale(model: Any, ids: torch.Tensor) -> float | None:
    """The scale, from the model's reading of public tokens [1, tokens]; None where its logits are no such product."""
    try:
        states = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        weight = model.get_output_embeddings().weight
        product = states.float() @ weight.float().T
        own = model(input_ids=ids, use_cache=False).logits.float()
        scale = float((own * product).sum() / product.square().sum())
        found = [logits_of(model, size * states).float() / size for size in SIZES]
    except (AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return None
    limit = _PRECISE if states.dtype == weight.dtype == torch.float32 else _ROUNDED
    if not all(_distance(logits, scale * product) <= limit for logits in (own, *found)):
        return None
    # Four digits, so that processors which round otherwise have one scale; 1 is 1.
    return 1.0 if abs(scale - 1) < limit else float(f"{scale:.3e}")


def logits_of(model: Any, states: torch.Tensor) -> torch.Tensor:
    """The logits that the model computes where its trunk ends in these states, [rows, tokens, width]."""
    trunk, shell = copy.copy(model.base_model), copy.copy(model)
    trunk.forward = lambda *_, **__: BaseModelOutputWithPast(last_hidden_state=states)
    vars(shell)["_modules"] = model._modules | {model.base_model_prefix: trunk}
    logits: torch.Tensor = shell(inputs_embeds=states, use_cache=False).logits
    return logits


def _distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm()) if found.shape == expected.shape else torch.inf
