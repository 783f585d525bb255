"""The loss that DP-SGD clips: for each row of a batch, the weighted negative log-likelihood of its tokens.

A unit's weights sum to 1 over its rows, so its loss is the mean over its tokens, whatever else is in the batch. A mean
over the batch, which Hugging Face's own loss takes, would couple the examples.

How many tokens of a batch carry loss depends on all of its units, so the head is not multiplied with all of these at
once: the shape of that product, hence its rounding, would depend on others. It takes HEAD_ROWS tokens at a time.

A loss of the user's own takes its place where one is given (`own_losses`). It must be a function of the weights and of
each row's unit alone. `independence` tries that before the first step; the certificate names it as an assumption.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from rayprivacy.core.errors import ConfigError
from rayprivacy.dpsgd.batches import Batch

# Families whose logits are the head's product with the last states, and nothing else (no scaling, no soft cap).
PLAIN_HEADS = ("gpt2", "llama", "mistral", "qwen2", "qwen3")
HEAD_ROWS = 64
RowLoss = Callable[[Any, Batch], torch.Tensor]


def row_losses(model: Any, batch: Batch, low_precision: bool = False) -> torch.Tensor:
    """Losses in nats, float32 [rows], of a causal language model; `low_precision` computes under bfloat16 autocast.

    Rows are padded on the right, which a causal model never looks at from the left. The loss itself stays in float32.
    """
    device = next(model.parameters()).device
    ids, weights = batch.ids.to(device), batch.weights.to(device)
    # One line of positions for all rows would lose the axis of the examples in learnt position embeddings.
    positions = torch.arange(ids.shape[1], device=device).expand_as(ids).contiguous()
    row, place = torch.nonzero(weights[:, 1:], as_tuple=True)
    low_precision = low_precision or torch.is_autocast_enabled(device.type)  # called by a loss of the user's own
    with torch.autocast(device.type, torch.bfloat16, enabled=low_precision):
        inputs: dict[str, object] = {"input_ids": ids, "position_ids": positions, "use_cache": False}
        logits = _logits(model, inputs, row, place, batch.least_targets)
    nll = F.cross_entropy(logits.float(), ids[row, place + 1], reduction="none")
    return torch.zeros(len(ids), device=device).index_add(0, row, nll * weights[row, place + 1])


def own_losses(model: Any, batch: Batch, loss: RowLoss, low_precision: bool = False) -> torch.Tensor:
    """Losses by the user's own function, float32 [rows], of rows padded on the right.

    The function is given the batch on the model's device, and computes under bfloat16 autocast with `low_precision`.
    Rows of padding have loss 0, whatever the function returns for them: their number depends on how many units were
    sampled, and each would add a gradient of its own to the sum.
    """
    device = next(model.parameters()).device
    own = Batch(batch.ids.to(device), batch.weights.to(device), batch.rows_per_unit)
    with torch.autocast(device.type, torch.bfloat16, enabled=low_precision):
        values = loss(model, own)
    if not isinstance(values, torch.Tensor) or values.shape != (len(own.ids),):
        raise ConfigError("the loss does not return a tensor with one number per row: return them unreduced, [rows].")
    return torch.where(own.weights.any(1), values.float(), 0.0)


def _logits(model: Any, inputs: dict[str, object], row: torch.Tensor, place: torch.Tensor, least: int) -> torch.Tensor:
    """Logits at some places, [places, vocabulary]; a frozen head is spared the others (codes, padding), but `least`."""
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    head = causal.get_output_embeddings()
    if head.weight.requires_grad or causal.config.model_type not in PLAIN_HEADS:
        whole: torch.Tensor = model(**inputs).logits
        return whole[row, place]
    states: torch.Tensor = causal.base_model(**inputs).last_hidden_state
    few, filled = states[row, place], max(len(row), least)
    blocks = F.pad(few, (0, 0, 0, filled - len(few) + -filled % HEAD_ROWS)).split(HEAD_ROWS)
    return torch.cat([head(block) for block in blocks])[: len(few)]
