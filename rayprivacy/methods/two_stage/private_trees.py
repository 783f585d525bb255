"""Where the trees of private text come from: a column of the corpus, or a parser that learnt from public pairs alone.

    public pairs -> the parser                                                                     (public)
    corpus -> shards without trees -> the parser, record by record (`parsing`) -> shards with trees        (private)

What a parser gets wrong is a matter of quality: a tree is a function of its own record, whatever it says.
"""

from typing import Any

from rayprivacy.core.artifacts import digest_json
from rayprivacy.core.files import read_json, write_json
from rayprivacy.generation.parsing import Parser
from rayprivacy.methods.two_stage.blocks import PARSER, PARSER_STEPS, PARSING, PARTS_PARSED
from rayprivacy.methods.two_stage.parsing import ParsingJob, begin, finish, parse_parts
from rayprivacy.methods.two_stage.public_side import grammar_of, parser_pairs
from rayprivacy.methods.two_stage.recipe import TwoStageRecipe
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.parser import kept_parser, split_pairs
from rayprivacy.models.settings import ModelConfig, ParserConfig
from rayprivacy.runs.context import RunContext

HOW = "A semantic parser, trained on public pairs alone. No private text was read, and nothing is claimed."
CHECKED = 16  # held-out public pairs that the parser reads, at most
Context = RunContext[TwoStageRecipe]


def shard_with_trees(context: Context) -> dict[str, Any]:
    """Shard the corpus, with the trees that a parser reads off it where the recipe has one; public figures of that."""
    config = context.recipe.parser
    if config is None:
        context.shard()
        return {}
    with context.stage(PARSER):
        job, figures = _trained(context, config)
    context.shard(folder=job.source)
    with context.stage(PARSING):
        found = begin(job, context.key)
        if found is None:
            for _ in context.track(parse_parts(job, context.plan.parts), PARTS_PARSED):
                pass
            found = finish(job, context.key)
        context.corpus = found
    return {"parser": figures}


def _trained(context: Context, config: ParserConfig) -> tuple[ParsingJob, dict[str, float]]:
    """The parser, trained or found trained, and how it does on public pairs; the run is held to both."""
    run, recipe, base = context.run, context.recipe, context.base
    assert base is not None, "load_model comes before"
    pairs, tokens = parser_pairs(recipe), recipe.parses.max_tokens
    run.bind(parser_pairs=digest_json(pairs))
    told = context.counter(PARSER_STEPS)
    folder = kept_parser(base, pairs, config, tokens, told, run.root / "public", recipe.release_id, HOW)
    loaded = ModelConfig(base=str(folder), dtype=recipe.model.dtype)
    backbone, grammar = load_backbone(loaded), grammar_of(recipe)
    run.bind(parser=backbone.digest)
    figures = read_json(folder.with_suffix(".json"))
    if "exact" not in figures:  # read off public text first: what is broken shows here, and not on private text
        parser = Parser(backbone, config.max_tokens, tokens, grammar)
        held = split_pairs(pairs, config.seed)[0][:CHECKED]
        figures["exact"] = sum(parser.read(utterance) == tree for utterance, tree in held) / len(held)
        write_json(folder.with_suffix(".json"), figures)
    job = ParsingJob(
        model=loaded,
        digest=backbone.digest,
        text_tokens=config.max_tokens,
        tree_tokens=tokens,
        grammar=grammar,
        column=recipe.parses.column,
        unit=recipe.privacy.unit,
        source=run.private("unparsed"),
        out=context.shards,
        notes=run.private("parsing"),
        key_path=context.key_path,
    )
    return job, figures
