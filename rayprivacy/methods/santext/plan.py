"""The plan of SanText."""

from rayprivacy.methods.santext.blocks import Reader, Words
from rayprivacy.methods.santext.recipe import SanTextRecipe
from rayprivacy.models.size import size_of
from rayprivacy.runs.plan import EVALUATION, Effort, Plan, Stage


def plan_run(recipe: SanTextRecipe) -> Plan:
    """The plan of a recipe.

    Raises:
        ConfigError: what it asks for costs more than `privacy.epsilon`.
    """
    return Plan.of(recipe, Words(), Reader(), measuring=_measuring(recipe))


def _measuring(recipe: SanTextRecipe) -> Stage:
    size, attacked = size_of(recipe.model.base), recipe.evaluation.attacked
    efforts = (Effort("encode", size.forward(attacked)),) if attacked else ()
    return Stage(EVALUATION, "private text", f"{attacked} words are attacked", efforts=efforts)
