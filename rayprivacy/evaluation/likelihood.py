"""How surprised a head adapter is by next-token examples."""

import torch

from rayprivacy.models.adapters import HeadAdapter
from rayprivacy.models.features import Features

ROWS = 512


@torch.no_grad()
def total_nll(adapter: HeadAdapter, examples: Features, head: torch.Tensor) -> float:
    """Negative log-likelihood of all targets under the full vocabulary, in nats, summed.

    Args:
        adapter: which model.
        examples: next-token examples.
        head: output head, float32 [vocabulary, width].
    """
    total = 0.0
    for hidden, targets in zip(examples.hidden.split(ROWS), examples.targets.split(ROWS), strict=True):
        logits = adapter(hidden) @ head.T
        total += float(torch.nn.functional.cross_entropy(logits, targets, reduction="sum"))
    return total
