"""How surprised a language model is by text."""

import torch

from rayprivacy.models.features import Encoded

ROWS = 512


@torch.no_grad()
def total_nll(hidden: torch.Tensor, rows: Encoded, head: torch.Tensor) -> tuple[float, int]:
    """Negative log-likelihood of all next tokens under the full vocabulary, in nats, summed; and how many they are.

    Args:
        hidden: the model's states, [rows, row_tokens, width]; `hidden @ head.T` are its logits.
        rows: the text.
        head: output head, float32 [vocabulary, width].
    """
    keep, total = rows.predicts, 0.0
    targets = rows.ids[:, 1:][keep]
    for states, wanted in zip(hidden[:, :-1][keep].split(ROWS), targets.split(ROWS), strict=True):
        total += float(torch.nn.functional.cross_entropy(states.float() @ head.T, wanted, reduction="sum"))
    return total, len(targets)
