"""The plan of the generator: the label histogram, and the steps of DP-SGD with the least noise that fits the budget."""

from rayprivacy.blocks import match_plan, pretrain_plan, steps_plan, writing_plan
from rayprivacy.methods.generator.recipe import GeneratorRecipe
from rayprivacy.models.size import size_of
from rayprivacy.release.histogram import HistogramMechanism
from rayprivacy.runs.assumptions import DISCRETE_NOISE, Placed, Where, at
from rayprivacy.runs.figures_plan import Figures
from rayprivacy.runs.plan import Block, Plan, Stage

CODES, STEPS, WRITING = "shares of control codes", "DP-SGD", "synthetic text"
_SAYS = (
    *at(
        Where.PUBLIC,
        "Sampling rate, batch size, steps, clipping norm and the lists of label values are public, and so is the base "
        "model; none was chosen by looking at the corpus.",
    ),
    *at(
        Where.RELEASED,
        "The model and, where labels are used or text is matched, noisy shares left the private side, and nothing "
        "else; metrics marked 'releasable: false' are not part of the claim.",
    ),
)


class Shares(Block):
    """The release of how often each control code is used; free where there are none, or all are equal."""

    def stages(self, recipe: GeneratorRecipe) -> tuple[Stage, ...]:
        """One histogram."""
        cells, sigma = recipe.control_codes.cells, recipe.codes.sigma
        if not recipe.has_histogram:
            return (Stage(CODES, "nothing: all are equal", f"{cells} codes", efforts=()),)
        shares = HistogramMechanism(cells=cells, sigma=sigma, unit=recipe.privacy.unit)
        detail = f"{cells} codes, one Gaussian release of multiplier {sigma:g}"
        return (Stage(CODES, "labels of private text", detail, (shares.event,), efforts=(), mechanism=shares),)

    def assumptions(self, recipe: GeneratorRecipe) -> tuple[Placed, ...]:
        """What holds of any noise on a grid."""
        return at(Where.NOISE, DISCRETE_NOISE["gaussian"]) if recipe.has_histogram else ()


def plan_run(recipe: GeneratorRecipe) -> Plan:
    """The plan of a recipe."""
    detail = f"{recipe.training.steps} steps on {recipe.corpus.source}, {recipe.adapter.kind}"
    size, texts = size_of(recipe.model.base), recipe.candidates(recipe.generation.texts)
    return Plan.of(
        recipe,
        pretrain_plan.Pretrain(),
        Shares(),
        steps_plan.Steps(STEPS, recipe.training, detail, size),
        writing_plan.Writing(WRITING, recipe.generation.model_copy(update={"texts": texts})),
        match_plan.Match(steps_plan.PART_FILES),
        Figures(steps_plan.PART_FILES),
        says=_SAYS,
        measuring=writing_plan.measuring_stage(recipe, size, recipe.training.max_tokens, 2 + bool(recipe.pretrain)),
    )
