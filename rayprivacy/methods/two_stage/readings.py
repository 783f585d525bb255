r"""How each of the two models reads a private row, and how it is asked when text is written.

    tree model          start, TREE, end
    utterance model     start, "say TREE\n", UTTERANCE, end        (loss on the utterance and the end only)

The word in front tells the second kind of document from the first: both models may stand on one base that was trained
on public documents of both kinds. A row without a tree is read with an empty one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rayprivacy.dpsgd.units import Reading, no_context
from rayprivacy.methods.two_stage.recipe import TwoStageRecipe, prompt
from rayprivacy.runs.directory import MODEL

PARSES = f"{MODEL}/parses"  # the folder of the tree model; that of the utterance model is MODEL itself
RELEASED_TREE = "parse"  # the column of released text that has the tree it was written from
_MARKS = 4  # tokens around a tree in a prompt, at most


def parses_of(recipe: TwoStageRecipe) -> Reading:
    """How the tree model reads a row: its tree, with nothing in front."""
    tree = TreeOf(recipe.parses.column)
    return Reading(recipe.privacy.unit, recipe.corpus.labels, no_context, recipe.parses.max_tokens, text=tree.version)


def utterances_of(recipe: TwoStageRecipe) -> Reading:
    """How the utterance model reads a row: its text behind its tree."""
    return Reading(
        recipe.privacy.unit,
        recipe.corpus.labels,
        TreeOf(recipe.parses.column).prompt,
        recipe.training.max_tokens,
        max_context=recipe.parses.max_tokens + _MARKS,
    )


def models_beside(recipe: TwoStageRecipe) -> dict[str, Reading]:
    """The readings of the models beside the main one, by their folder in the run directory."""
    return {PARSES: parses_of(recipe)}


@dataclass(frozen=True)
class TreeOf:
    """The tree of a row, in a column of it; goes to the workers.

    A released row has it in a column of another name. A private one has its own column, if nothing in it.
    """

    column: str

    def version(self, row: Mapping[str, Any], version: int) -> str:
        """The tree, whatever the version."""
        return str(row.get(self.column, row.get(RELEASED_TREE)) or "")

    def prompt(self, row: Mapping[str, Any]) -> str:
        """The tree as a prompt."""
        return prompt(self.version(row, 0))
