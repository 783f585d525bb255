"""Internal evaluation of language models on held-out users, as they read a row: perplexity, and lengths of texts.

All figures read private text and are outside the certificate: `releasable: false`.
"""

from typing import Any

from rayprivacy.core.counting import Told, nobody
from rayprivacy.dpsgd.units import Reading, documents_of
from rayprivacy.evaluation.language import length_summary, perplexity
from rayprivacy.models.backbone import Backbone
from rayprivacy.runs.directory import Run
from rayprivacy.runs.heldout import NOBODY, WHY, heldout_rows, total_loss
from rayprivacy.runs.sealing import sealed


@sealed("the evaluation on held-out users")
def heldout_metrics(
    run: Run[Any],
    backbone: Backbone,
    reading: Reading,
    models: dict[str, Any],
    told: Told = nobody,
) -> dict[str, Any]:
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
