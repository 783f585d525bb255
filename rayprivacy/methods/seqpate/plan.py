"""The plan of SeqPATE, and the check of its inputs."""

from rayprivacy.blocks.match_plan import Match
from rayprivacy.blocks.pretrain_plan import Pretrain
from rayprivacy.corpus.phrases import load_phrases
from rayprivacy.generation.settings import require_engine
from rayprivacy.methods.seqpate.blocks import Votes
from rayprivacy.methods.seqpate.recipe import SeqPateRecipe
from rayprivacy.runs.plan import Plan


def plan_run(recipe: SeqPateRecipe) -> Plan:
    """The plan of a recipe.

    Raises:
        ConfigError: no noise is enough, or not one query keeps votes.noise_target.
    """
    return Plan.of(recipe, Pretrain(), Votes(), Match(recipe.teachers.parts))


def check_inputs(recipe: SeqPateRecipe) -> None:
    """Refuse an engine that is not installed, and a list of secret phrases that cannot be read, or could overlap.

    Raises:
        ConfigError: names the key.
    """
    require_engine("pseudo.engine", recipe.pseudo.engine)
    if recipe.corpus.phrases:
        load_phrases(recipe.corpus.phrases)
