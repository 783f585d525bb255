"""Rows of held-out users, and what a language model loses on them. Both are private: see `sealed`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from rayprivacy.corpus.parts import first_holdout
from rayprivacy.dpsgd.batches import Document, physical_batches
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.runs.directory import Run

WHY = "measured on private held-out text"
NOBODY = {"releasable": False, "why": "corpus.holdout keeps nobody aside: nothing was measured"}


def heldout_rows(run: Run[Any]) -> list[dict[str, Any]]:
    """The rows of at most `evaluation.users` held-out users."""
    rows: list[dict[str, Any]] = first_holdout(run.private("shards"), run.recipe.evaluation.users).to_pylist()
    return rows


@torch.no_grad()
def total_loss(run: Run[Any], model: Any, end: int, documents: Sequence[Document]) -> tuple[float, int]:
    """The negative log-likelihood of some documents behind their contexts, in nats, and of how many tokens it is."""
    total, tokens = 0.0, 0
    for batch in physical_batches([[each] for each in documents], run.recipe.resources.tokens_at_once, end):
        counted = (batch.weights > 0).float()
        total += float(row_losses(model, replace(batch, weights=counted)).sum())
        tokens += int(counted.sum())
    return total, tokens
