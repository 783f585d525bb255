"""Computes the loss of private rows under a run's released models, for attacks and for the charged metric."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from rayprivacy.auditing.scoring import Array, Scored, ScoredModel
from rayprivacy.dpsgd.tagger_scores import losses, sorted_scores
from rayprivacy.dpsgd.units import Reading, Row, documents_of
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.tagger_settings import TaggerConfig
from rayprivacy.models.tags import Tags
from rayprivacy.runs.directory import MODEL
from rayprivacy.runs.method import Method
from rayprivacy.runs.recipe import Recipe


@dataclass(frozen=True)
class ScoredTagger:
    """A released tagger, and how it read a row (see `auditing.scoring.ScoredModel`).

    Attributes:
        tags: what it can say.
        reading: how a row becomes a document.
        folder: of the model in the run directory.
    """

    tags: Tags
    reading: Reading = field(repr=False)
    folder: str = MODEL

    def totals(self, backbone: Backbone, rows: Sequence[Row]) -> tuple[Array, Array]:
        """The loss of each row in nats, which is one figure and not a sum over tokens."""
        found = losses(backbone.model, self.tags, documents_of(rows, backbone, self.reading))
        return found, np.ones(len(found))

    def certainty(self, backbone: Backbone, rows: Sequence[Row]) -> Array:
        """Its highest scores of intents and of words, sorted (Shokri et al., 2017)."""
        return sorted_scores(backbone.model, self.tags, documents_of(rows, backbone, self.reading))


def attacked_models(method: Method, recipe: Recipe) -> Sequence[ScoredModel]:
    """The models of a run of a recipe, language models or a tagger."""
    if isinstance(recipe.model, TaggerConfig):
        return [ScoredTagger(recipe.model.tags, method.reads(recipe))]
    return scored_models(method, recipe)


def scored_models(method: Method, recipe: Recipe) -> list[Scored]:
    """The language models of a run of a recipe; first the one that writes its text."""
    readings = {MODEL: method.reads(recipe), **method.reads_beside(recipe)}
    return [
        Scored(folder, each.context, partial(_text, each), each.max_tokens, each.max_context)
        for folder, each in readings.items()
    ]


def _text(reading: Reading, row: Row) -> str:
    return reading.text(row, reading.versions - 1)
