"""The public inputs: the grammar that trees follow, and annotated text on which the base model is trained first."""

from rayprivacy.blocks.pretrain_plan import BLOCK
from rayprivacy.core import errors, private
from rayprivacy.corpus.public import public_rows
from rayprivacy.generation.text_writers import Structure
from rayprivacy.methods.two_stage.recipe import TwoStageRecipe, prompt
from rayprivacy.models.settings import LEAST_TEXTS, ParserConfig, PretrainConfig
from rayprivacy.structures.grammar import Grammar, lispress, read_functions, read_rules
from rayprivacy.structures.masks import check_grammar


def check_inputs(recipe: TwoStageRecipe) -> None:
    """Refuse public inputs that cannot be used."""
    grammar = grammar_of(recipe)
    if grammar is not None:
        check_grammar(grammar, "parses.rules" if recipe.parses.rules else "parses.functions")
    pretraining_documents(recipe)
    if recipe.parser is not None:
        parser_pairs(recipe)


def grammar_of(recipe: TwoStageRecipe) -> Grammar | None:
    """The rules of synthetic trees, or None."""
    config = recipe.parses
    if config.functions is not None:
        return Grammar(lispress(read_functions(config.functions, "parses.functions")))
    if config.rules is not None and config.grammar in ("ebnf", "json"):
        return read_rules(config.rules, config.grammar, "parses.rules")
    return None


def constants_of(recipe: TwoStageRecipe) -> frozenset[str]:
    """The strings that are names of trees in JSON, beside its keys."""
    grammar = grammar_of(recipe)
    return grammar.constants if grammar else frozenset()


def structure_of(recipe: TwoStageRecipe) -> Structure:
    """What is asked of synthetic trees."""
    config, grammar = recipe.generation, grammar_of(recipe)
    if grammar is None:
        return Structure(None, free_draws=1, constrained=False)
    return Structure(grammar, config.free_draws if config.constrained else 1, config.constrained)


def public_inputs(recipe: TwoStageRecipe) -> dict[str, str]:
    """Digests of what a run is held to."""
    grammar = grammar_of(recipe)
    return {"grammar": private.digest_json(grammar.text)} if grammar else {}


def pretraining_documents(recipe: TwoStageRecipe) -> list[str] | None:
    """The public documents of both models, or None without a `pretrain` block."""
    config = recipe.pretrain
    if config is None:
        return None
    rows = _pairs(recipe, config, BLOCK)
    return [document for text, tree in rows for document in (tree, f"{prompt(tree)}{text}")]


def parser_pairs(recipe: TwoStageRecipe) -> list[tuple[str, str]]:
    """The public utterances and their trees from which the parser learns."""
    assert recipe.parser is not None, "a recipe with a parser"
    return _pairs(recipe, recipe.parser, "parser")


def _pairs(recipe: TwoStageRecipe, config: PretrainConfig | ParserConfig, block: str) -> list[tuple[str, str]]:
    assert config.source is not None, "PairsConfig takes no prompts"
    rows = public_rows(config.source, config.text, recipe.parses.column, block, "parses.column")
    if len(rows) < LEAST_TEXTS:
        raise errors.ConfigError(
            f"{block}.source has {len(rows)} rows with text and tree: give at least {LEAST_TEXTS}, or remove '{block}'."
        )
    return rows
