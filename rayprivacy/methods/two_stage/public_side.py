"""The public inputs: the grammar that trees follow, and annotated text on which the base model is trained first."""

from rayprivacy.core.artifacts import digest_json
from rayprivacy.core.errors import ConfigError
from rayprivacy.corpus.grammar import lispress, read_functions
from rayprivacy.corpus.public_texts import public_rows
from rayprivacy.generation.structured import Structure, require_grammar
from rayprivacy.methods.two_stage.prompts import prompt
from rayprivacy.methods.two_stage.recipe import TwoStageRecipe
from rayprivacy.runs.pretrain_plan import BLOCK, LEAST_TEXTS


def check_inputs(recipe: TwoStageRecipe) -> None:
    """Refuse public inputs that cannot be used.

    Raises:
        ConfigError: the package that reads grammars is missing, or the functions or the public text cannot be used.
    """
    if recipe.parses.grammar is not None:
        require_grammar("parses.grammar")
    structure_of(recipe)
    pretraining_documents(recipe)


def structure_of(recipe: TwoStageRecipe) -> Structure:
    """What is asked of synthetic trees.

    Raises:
        ConfigError: the list of functions cannot be read, or is none.
    """
    config = recipe.generation
    if recipe.parses.functions is None:
        return Structure(None, free_draws=1, constrained=False)
    grammar = lispress(read_functions(recipe.parses.functions, "parses.functions"))
    return Structure(grammar, config.free_draws if config.constrained else 1, config.constrained)


def public_inputs(recipe: TwoStageRecipe) -> dict[str, str]:
    """Digests of what a run is held to."""
    grammar = structure_of(recipe).grammar
    return {"grammar": digest_json(grammar)} if grammar else {}


def pretraining_documents(recipe: TwoStageRecipe) -> list[str] | None:
    """The public documents of both models, or None without a `pretrain` block.

    Raises:
        ConfigError: they cannot be read, or are too few.
    """
    config = recipe.pretrain
    if config is None:
        return None
    rows = public_rows(config.source, config.text, recipe.parses.column, BLOCK, "parses.column")
    if len(rows) < LEAST_TEXTS:
        raise ConfigError(
            f"pretrain.source has {len(rows)} rows with text and tree: give at least {LEAST_TEXTS}, or remove"
            " 'pretrain'."
        )
    return [document for text, tree in rows for document in (tree, f"{prompt(tree)}{text}")]
