"""Held-out users: their rows, and what language models lose on them. Both are private: see `sealed`.

All figures are internal: they read private text and are outside the certificate (`releasable: false`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from rayprivacy.core.console import Told, nobody
from rayprivacy.core.files import Json
from rayprivacy.corpus.manifest import first_holdout
from rayprivacy.dpsgd.batches import Document, packed
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.dpsgd.units import Reading, documents_of
from rayprivacy.evaluation.language import length_summary, perplexity
from rayprivacy.models.backbone import Backbone
from rayprivacy.runs.directory import Run
from rayprivacy.runs.sealing import sealed

WHY = "measured on private held-out text"
NOBODY = {"releasable": False, "why": "corpus.holdout keeps nobody aside: nothing was measured"}


def heldout_rows(run: Run[Any]) -> list[Json]:
    """The rows of at most `evaluation.users` held-out users."""
    rows: list[Json] = first_holdout(run.private("shards"), run.recipe.evaluation.users).to_pylist()
    return rows


@torch.no_grad()
def total_loss(run: Run[Any], model: Any, end: int, documents: Sequence[Document]) -> tuple[float, int]:
    """The negative log-likelihood of some documents behind their contexts, in nats, and of how many tokens it is."""
    total, tokens = 0.0, 0
    for batch in packed([[each] for each in documents], run.recipe.resources.tokens_at_once, end):
        counted = (batch.weights > 0).float()
        total += float(row_losses(model, replace(batch, weights=counted)).sum())
        tokens += int(counted.sum())
    return total, tokens


@sealed("the evaluation on held-out users")
def heldout_metrics(
    run: Run[Any], backbone: Backbone, reading: Reading, models: Mapping[str, Any], told: Told = nobody
) -> Json:
    """Perplexity of each model behind the control codes, and how long the texts are before and after cutting."""
    rows = heldout_rows(run)
    if not rows:
        return dict(NOBODY)
    documents = documents_of(rows, backbone, reading)
    cut = sum(document.ids[-1] != backbone.end for document in documents) / len(documents)
    measured = {}
    for number, (name, model) in enumerate(models.items()):
        told(number)
        measured[name] = perplexity(*total_loss(run, model, backbone.end, documents))
    return {
        "releasable": False,
        "why": WHY,
        "perplexity": measured,
        "lengths": length_summary([row["text"] for row in rows]),
        "cut_share": round(cut, 4),
    }
