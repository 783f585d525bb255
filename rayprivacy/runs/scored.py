"""The released models of a run as attacks and charged metrics score them: each reads a row as its training did."""

from functools import partial

from rayprivacy.auditing.scoring import Scored
from rayprivacy.dpsgd.units import Reading, Row
from rayprivacy.runs.directory import MODEL
from rayprivacy.runs.method import Method
from rayprivacy.runs.recipe import Recipe


def scored_models(method: Method, recipe: Recipe) -> list[Scored]:
    """The models of a run of a recipe; first the one that writes its text."""
    readings = {MODEL: method.reads(recipe), **method.reads_beside(recipe)}
    return [
        Scored(folder, each.context, partial(_text, each), each.max_tokens, each.max_context)
        for folder, each in readings.items()
    ]


def _text(reading: Reading, row: Row) -> str:
    return reading.text(row, reading.versions - 1)
