"""The loss that DP-SGD clips: for each row of a batch, the weighted negative log-likelihood of its tokens.

A unit's weights sum to 1 over its rows, so its loss is the mean over its tokens, whatever else is in the batch. A mean
over the batch, which Hugging Face's own loss takes, would couple the examples.
"""

from typing import Any

import torch

from rayprivacy.dpsgd.batches import Batch


def row_losses(model: Any, batch: Batch, low_precision: bool = False) -> torch.Tensor:
    """Losses in nats, float32 [rows].

    Args:
        model: a causal language model of Hugging Face.
        batch: rows padded on the right, which a causal model never looks at from the left.
        low_precision: compute under bfloat16 autocast; the loss itself stays in float32.
    """
    device = next(model.parameters()).device
    ids, weights = batch.ids.to(device), batch.weights.to(device)
    # One line of positions for all rows would lose the axis of the examples in learnt position embeddings.
    positions = torch.arange(ids.shape[1], device=device).expand_as(ids).contiguous()
    with torch.autocast(device.type, torch.bfloat16, enabled=low_precision):
        logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    row, place = torch.nonzero(weights[:, 1:], as_tuple=True)
    nll = torch.nn.functional.cross_entropy(logits[row, place].float(), ids[row, place + 1], reduction="none")
    return torch.zeros(len(ids), device=device).index_add(0, row, nll * weights[row, place + 1])
