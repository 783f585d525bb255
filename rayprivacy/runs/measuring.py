"""The stage that compares released with private text after a run; it is the same for all methods."""

from rayprivacy.evaluation.settings import MINILM, SCORED
from rayprivacy.models.size import size_of
from rayprivacy.runs.effort import Effort
from rayprivacy.runs.plan import Plan, Stage, Work
from rayprivacy.runs.recipe import Recipe

COMPARISON = "comparison with private text"
GROUPS_MEASURED, GROUPS = "groups_measured", 4  # embeddings, fidelity, words, memorisation
SIDES, TEXT_TOKENS = 3, 32  # training, held-out and synthetic texts, and tokens of each text


def all_stages(plan: Plan, recipe: Recipe, measured: bool = True) -> tuple[Stage, ...]:
    """The stages of a plan, and those that measure."""
    if not measured:
        return plan.stages
    compared = (_comparison(recipe),) if recipe.evaluation.compare else ()
    return (*plan.stages, plan.measuring, *compared)


def _comparison(recipe: Recipe) -> Stage:
    texts, base, encoder = recipe.evaluation.compare, size_of(recipe.model.base), size_of(MINILM)
    flops = base.forward(SIDES * min(texts, SCORED) * TEXT_TOKENS) + encoder.forward(SIDES * texts * TEXT_TOKENS)
    work = (Work(GROUPS_MEASURED, GROUPS),)
    return Stage(COMPARISON, f"{texts} private texts of each side", work=work, efforts=(Effort("encode", flops),))
