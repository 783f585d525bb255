"""The algorithm of two-stage generation (Mireshghallah et al., ACL 2023, "Privacy-Preserving Domain Adaptation of
Semantic Parsers"), for private utterances whose meaning has a grammar.

    base model -> trained on public utterances with their trees, with `pretrain`                     (public)
    base model -> trained to parse, with `parser` -> trees of the corpus, a record at a time         (private)
    corpus -> trees -> coins -> clipped gradients -> noisy sums, charged -> the tree model           (released)
    corpus -> trees and utterances -> the same, other coins and noise -> the utterance model         (released)
    the tree model -> trees, freely or under a public grammar -> the utterance model -> text         (free)

Both trainings read the same users, so their charges add up, and one calibration gives the noise of both. Each is a
stage of the release, whose name is part of its charges, its coins and its noise: with equal settings they would
otherwise share a stream, and the difference of the two models would be without noise.

What differs from the paper: users and not utterances are protected, samples are drawn by coins and not shuffled, and
nothing is computed from the size of the corpus.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pyarrow.parquet as pq

from rayprivacy.blocks import pretrain, steps, writing
from rayprivacy.core.private import digest_json
from rayprivacy.dpsgd.units import Reading
from rayprivacy.generation.codes import Codes, CodesConfig
from rayprivacy.generation.writing import Written
from rayprivacy.methods.two_stage import heldout, plan, private_trees, public_side, readings
from rayprivacy.methods.two_stage.recipe import TwoStageRecipe, prompt
from rayprivacy.runs import directory
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.method import SYNTHETIC, Output
from rayprivacy.runs.plan import MODELS_MEASURED, TEXTS_WRITTEN
from rayprivacy.structures.trees import names

HOW = "A language model fine-tuned with DP-SGD on private {}."
TREES_FILE = "trees.parquet"
Context = RunContext[TwoStageRecipe]


def run(context: Context) -> Output | None:
    """Run, or finish, a recipe; None when it was stopped after some chunks, with its models saved."""
    recipe = context.recipe
    documents, inputs = public_side.pretraining_documents(recipe), public_side.public_inputs(recipe)
    backbone = pretrain.load_model(context, documents, **inputs)
    parsed = private_trees.shard_with_trees(context)

    def trained_on(name: str, stage: str, reading: Reading) -> steps.Trained:
        settings = recipe.training_of(stage)
        return steps.train(context, name, steps.Training(reading, recipe.adapter, settings, recipe.resources))

    trees = trained_on(plan.PARSES, "trees", readings.parses_of(recipe))
    utterances = trained_on(plan.UTTERANCES, "utterances", readings.utterances_of(recipe))
    writer = steps.save_trained(context, utterances, recipe.adapter, HOW.format("utterances behind their parse trees"))
    parser = steps.save_trained(context, trees, recipe.adapter, HOW.format("parse trees"), readings.PARSES)
    if context.stops_early:
        return None
    with context.stage(plan.TREES):
        drawn = _write_trees(context, trees)
    with context.stage(plan.WRITING):
        written = _write_texts(context, utterances)
    models = {name: (model, model) for name, model in context.public_models.items()}  # each reads both kinds of row
    models, counter = {**models, "two_stage": (parser, writer)}, context.counter(MODELS_MEASURED)
    measured = cache(lambda: heldout.tree_metrics(context.run))
    return Output(
        figures={"degenerate": written.degenerate, "trees": _tree_figures(drawn), **context.public_figures, **parsed},
        heldout=lambda: heldout.heldout_metrics(context.run, backbone, models, counter),
        internal=lambda: {"trees": measured()},
        exhibits=lambda: heldout.tree_exhibits(_tree_figures(drawn), measured()),
    )


def _write_trees(context: Context, trained: steps.Trained) -> Written:
    recipe, config = context.recipe, context.recipe.tree_writing
    asked, structure = [(0, "")] * config.texts, public_side.structure_of(recipe)
    rules = structure.grammar.text if structure.grammar else None
    mark = digest_json([trained.inputs, config.texts, rules, structure.free_draws, structure.constrained])
    model, out, labels = context.run.root / readings.PARSES, context.run.public(TREES_FILE), Codes(CodesConfig(), ())
    return writing.written_once(context, model, asked, config, labels, out, mark, plan.TREES_WRITTEN, structure)


def _write_texts(context: Context, trained: steps.Trained) -> Written:
    trees = pq.read_table(context.run.public(TREES_FILE))["text"].to_pylist()
    prompts = [(place, prompt(tree)) for place, tree in enumerate(trees)]
    labels = TreeLabels(trees, public_side.constants_of(context.recipe))
    model, out, config = context.run.root / directory.MODEL, context.run.root / SYNTHETIC, context.recipe.generation
    mark, known = digest_json([trained.inputs, prompts]), labels.names
    return writing.written_once(context, model, prompts, config, labels, out, mark, TEXTS_WRITTEN, names=known)


def _tree_figures(drawn: Written) -> Mapping[str, Any]:
    """How trees were drawn; the share of free draws that followed the grammar is the pass rate before constraints."""
    free = drawn.draws.get("free_draws", 0)
    accepted = drawn.draws.get("free_draws_accepted", 0)
    return {"written": drawn.texts, **drawn.draws, "pass_rate": round(accepted / free, 4) if free else None}


class TreeLabels:
    """The columns beside synthetic text: the tree that it was written from, by its number, and the names in that tree.

    >>> TreeLabels(['(Yield (Today))']).labels(0)
    {'parse': '(Yield (Today))', 'functions': 'Yield Today'}
    """

    columns = (readings.RELEASED_TREE, "functions")

    def __init__(self, trees: Sequence[str], constants: frozenset[str] = frozenset()) -> None:
        self._trees = trees
        self._names = [names(tree, constants) or [] for tree in trees]

    @property
    def names(self) -> frozenset[str]:
        """All names that occur in the trees."""
        return frozenset(name for found in self._names for name in found)

    def labels(self, cell: int) -> dict[str, str]:
        """The tree of a prompt as it was written, and its functions (of JSON: its names); what is no tree has none."""
        return {readings.RELEASED_TREE: self._trees[cell], "functions": " ".join(self._names[cell])}
