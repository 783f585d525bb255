"""The plan of two-stage generation: two trainings with DP-SGD on the same users, calibrated together, then writing."""

from rayprivacy.blocks.pretrain_plan import Pretrain
from rayprivacy.blocks.writing_plan import Writing, measuring_stage
from rayprivacy.methods.two_stage.blocks import Trainings, Trees
from rayprivacy.methods.two_stage.recipe import TwoStageRecipe
from rayprivacy.models.size import size_of
from rayprivacy.runs.assumptions import Where, at
from rayprivacy.runs.plan import Plan

TREES, WRITING = "synthetic parse trees", "synthetic text"
TREES_WRITTEN = "trees_written"
_PUBLIC = (
    "Sampling rates, batch sizes, steps, clipping norm and bounds are public, and so is the base model; none was "
    "chosen by looking at the corpus."
)
_GRAMMAR = (
    "The grammar of the trees and the list of function names (parses.functions) are public, and neither was made from "
    "the corpus."
)
_RELEASED = (
    "The two models left the private side, and nothing else; metrics marked 'releasable: false' are not part of the "
    "claim."
)


def plan_run(recipe: TwoStageRecipe) -> Plan:
    """The plan of a recipe.

    Raises:
        ConfigError: no noise is enough for the budget.
    """
    tokens = 2 * recipe.parses.max_tokens + recipe.training.max_tokens  # of a tree, and of an utterance behind it
    grammar = at(Where.RELEASED, _GRAMMAR) if recipe.parses.grammar else ()
    return Plan.of(
        recipe,
        Pretrain(),
        Trees(),
        Trainings(),
        Writing(TREES, recipe.tree_writing, TREES_WRITTEN, "the released models"),
        Writing(WRITING, recipe.generation, reads="the released models"),
        says=(*at(Where.PUBLIC, _PUBLIC), *grammar, *at(Where.RELEASED, _RELEASED)),
        measuring=measuring_stage(recipe, size_of(recipe.model.base), tokens, 2 + bool(recipe.pretrain)),
    )
