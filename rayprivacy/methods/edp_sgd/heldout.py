"""Semantic error rates on held-out users: of the released tagger, the untrained one, and one trained without noise.

All of them read private text and are outside the certificate: `releasable: false`. The reference without noise is
trained on private text, measured, and thrown away.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from rayprivacy.blocks.steps_plan import with_learning_rate
from rayprivacy.corpus.manifest import part_tables
from rayprivacy.dpsgd import batches, units
from rayprivacy.dpsgd.losses import own_losses
from rayprivacy.methods.edp_sgd.plan import REFERENCE_BATCH
from rayprivacy.methods.edp_sgd.reading import reading_of, tagged_rows
from rayprivacy.methods.edp_sgd.recipe import EdpSgdRecipe
from rayprivacy.models import pretraining, trainable
from rayprivacy.models.backbone import Backbone
from rayprivacy.runs import heldout, method, plan
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.sealing import sealed
from rayprivacy.tagging import figures, settings
from rayprivacy.tagging.loss import TaggerLoss, predicted

NAMES = {"base": "Untrained heads", "edp_sgd": "Tagger (this run)", "nonprivate": "Trained without noise (not private)"}
SEED = 0  # of the order of the rows of the reference; public


def frames(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    tags: settings.Tags,
    said: Iterable[tuple[int, list[int]]],
) -> Iterator[tuple[figures.Frame, figures.Frame]]:
    """For each private row its labels as a frame, and what a tagger found (`said`, from `TaggedRows.by_word`)."""
    intent, labels = columns
    for row, (number, numbers) in zip(rows, said, strict=True):
        words = str(row["text"]).split()
        there = [tags.names[each] for each in tags.words(row[labels], len(words))]
        found = [tags.names[each] for each in numbers]
        yield (
            figures.Frame(tags.all_intents[tags.intent(row[intent])], settings.spans(there, words)),
            figures.Frame(tags.all_intents[number], settings.spans(found, words)),
        )


class Heldout:
    """Measures a run when it is finished."""

    def __init__(self, context: RunContext[EdpSgdRecipe], backbone: Backbone, model: Any, loss: TaggerLoss) -> None:
        self._context, self._backbone, self._model, self._loss = context, backbone, model, loss
        self._reading = reading_of(context.recipe)
        self._errors: dict[str, figures.Errors] = {}

    @sealed("the evaluation on held-out users")
    def metrics(self) -> Mapping[str, Any]:
        """The rates, for metrics.json."""
        rows, told = heldout.heldout_rows(self._context.run), self._context.counter(plan.MODELS_MEASURED)
        if not rows:
            return dict(heldout.NOBODY)
        tags, read = self._context.recipe.model.tags, tagged_rows(self._context.recipe)
        documents = read(rows, self._backbone, 0)
        for number, (name, model) in enumerate(self._models()):
            told(number)
            said = read.by_word(rows, self._backbone, predicted(model, tags, documents))
            self._errors[name] = figures.all_errors(frames(rows, self._reading.labels, tags, said))
        rates = {name: round(errors.rate, 4) for name, errors in self._errors.items()}
        wrong = {name: round(errors.intents / errors.texts, 4) for name, errors in self._errors.items()}
        return {"releasable": False, "why": heldout.WHY, "semantic_error_rate": rates, "wrong_intents": wrong}

    def tables(self) -> list[method.Table]:
        """The same for the report, after `metrics`."""
        if not self._errors:
            return []
        rows = []
        for name, each in self._errors.items():
            slots = map(str, (each.substitutions, each.deletions, each.insertions))
            rows.append((NAMES[name], f"{each.rate:.1%}", f"{each.intents / each.texts:.1%}", *slots))
        columns = ("Model", "Semantic error rate", "Wrong intents", "Substituted", "Deleted", "Inserted")
        return [method.Table("Errors on held-out users: intents, and slots", columns, rows, internal=True)]

    def _models(self) -> Iterator[tuple[str, Any]]:
        yield "base", self._backbone.model
        yield "edp_sgd", self._model
        if self._context.recipe.evaluation.nonprivate_steps:
            yield "nonprivate", self._reference(self._context.recipe.evaluation.nonprivate_steps)

    def _reference(self, steps: int) -> Any:
        recipe = self._context.recipe
        model, documents = trainable.trainable(self._backbone, recipe.adapter), self._documents(steps * REFERENCE_BATCH)
        rate = with_learning_rate(recipe.training, recipe.adapter).optimizer.learning_rate
        assert rate is not None, "a resolved block has one"
        tokens, dice = recipe.resources.tokens_at_once, np.random.default_rng(SEED)
        low_precision = recipe.model.dtype == "bfloat16"

        def losses() -> Iterator[torch.Tensor]:
            chosen = dice.integers(len(documents), size=REFERENCE_BATCH)
            for batch in batches.packed([[documents[at]] for at in chosen], tokens, self._backbone.end):
                yield own_losses(model, batch, self._loss, low_precision).sum() / REFERENCE_BATCH

        pretraining.descend(torch.optim.AdamW(model.parameters(), lr=rate), (losses() for _ in range(steps)))
        return trainable.merged(model, self._backbone)

    def _documents(self, most: int) -> list[batches.Document]:
        context = self._context
        tables = (table for part in range(context.plan.parts) for table in part_tables(context.shards, part))
        rows = list(islice((row for table in tables for row in table.to_pylist()), most))
        return units.documents_of(rows, self._backbone, self._reading)
