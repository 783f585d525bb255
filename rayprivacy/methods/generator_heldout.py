"""Internal evaluation of a generator on held-out users: perplexity of the base and of the tuned model, lengths.

All figures read private text and are outside the certificate: `releasable: false`.
"""

from dataclasses import replace
from typing import Any

import torch

from rayprivacy.corpus.shards import read_holdout
from rayprivacy.dpsgd.batches import physical_batches
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.dpsgd.units import Reading, documents_of
from rayprivacy.evaluation.language import perplexity
from rayprivacy.evaluation.lengths import length_summary
from rayprivacy.methods.generator_recipe import GeneratorRecipe
from rayprivacy.methods.run import Run
from rayprivacy.methods.sealing import sealed
from rayprivacy.models.backbone import Backbone

WHY = "measured on private held-out text"


@sealed("the evaluation on held-out users")
def heldout_metrics(
    run: Run[GeneratorRecipe], backbone: Backbone, reading: Reading, models: dict[str, Any]
) -> dict[str, Any]:
    """Perplexity of each model behind the control codes, and how long the texts are before and after cutting.

    Args:
        run: the run.
        backbone: the base, whose tokenizer all models share.
        reading: how rows become documents.
        models: Hugging Face models by name.
    """
    rows = _heldout_rows(run)
    if not rows:
        return {"releasable": False, "why": "corpus.holdout keeps nobody aside: nothing was measured"}
    documents = documents_of(rows, backbone, reading)
    cut = sum(document.ids[-1] != backbone.end for document in documents) / len(documents)
    return {
        "releasable": False,
        "why": WHY,
        "perplexity": {name: _perplexity(run, model, backbone, documents) for name, model in models.items()},
        "lengths": length_summary([row["text"] for row in rows]),
        "cut_share": round(cut, 4),
    }


def _heldout_rows(run: Run[GeneratorRecipe]) -> list[dict[str, Any]]:
    rows = read_holdout(run.private("shards")).to_pylist()
    users = list(dict.fromkeys(row["user"] for row in rows))[: run.recipe.evaluation.users]
    return [row for row in rows if row["user"] in set(users)]


@torch.no_grad()
def _perplexity(run: Run[GeneratorRecipe], model: Any, backbone: Backbone, documents: list[Any]) -> float:
    total, tokens = 0.0, 0
    for batch in physical_batches([[each] for each in documents], run.recipe.resources.tokens_at_once, backbone.end):
        counted = (batch.weights > 0).float()
        total += float(row_losses(model, replace(batch, weights=counted)).sum())
        tokens += int(counted.sum())
    return perplexity(total, tokens)
