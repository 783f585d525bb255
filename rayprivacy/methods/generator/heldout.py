"""Internal evaluation of a generator on held-out users: perplexity of the base and of the tuned model, lengths.

All figures read private text and are outside the certificate: `releasable: false`.
"""

from dataclasses import replace
from typing import Any

import torch

from rayprivacy.core.counting import Told, nobody
from rayprivacy.corpus.parts import read_holdout
from rayprivacy.dpsgd.batches import physical_batches
from rayprivacy.dpsgd.losses import row_losses
from rayprivacy.dpsgd.units import Reading, documents_of
from rayprivacy.evaluation.language import length_summary, perplexity
from rayprivacy.methods.generator.recipe import GeneratorRecipe
from rayprivacy.models.backbone import Backbone
from rayprivacy.runs.directory import Run
from rayprivacy.runs.sealing import sealed

WHY = "measured on private held-out text"


@sealed("the evaluation on held-out users")
def heldout_metrics(
    run: Run[GeneratorRecipe],
    backbone: Backbone,
    reading: Reading,
    models: dict[str, Any],
    told: Told = nobody,
) -> dict[str, Any]:
    """Perplexity of each model behind the control codes, and how long the texts are before and after cutting.

    Args:
        run: the run.
        backbone: the base, whose tokenizer all models share.
        reading: how rows become documents.
        models: Hugging Face models by name.
        told: told how many models are measured.
    """
    rows = _heldout_rows(run)
    if not rows:
        return {"releasable": False, "why": "corpus.holdout keeps nobody aside: nothing was measured"}
    documents = documents_of(rows, backbone, reading)
    cut = sum(document.ids[-1] != backbone.end for document in documents) / len(documents)
    measured = {}
    for number, (name, model) in enumerate(models.items()):
        told(number)
        measured[name] = _perplexity(run, model, backbone, documents)
    return {
        "releasable": False,
        "why": WHY,
        "perplexity": measured,
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
