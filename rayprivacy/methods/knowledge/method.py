"""The algorithm of knowledge: what many users' texts agree on.

    corpus -> users, one by one -> names that their texts mention -> counts, RELEASE GATE -> names          (released)
    names, users, one by one -> what their texts say of each name -> counts, RELEASE GATE -> answers        (released)
    answers -> facts -> passages, questions and answers -> a language model that learns them                (free)

With names from a public file the first line is left out; with `rounds: 2` the second is done twice, the second time for
what the first left open. What comes behind the gate reads released counts and public text alone.
"""

from collections.abc import Sequence

import pyarrow as pa

from rayprivacy.blocks import trial
from rayprivacy.core.private import digest_json
from rayprivacy.dpsgd.units import Reading, no_context
from rayprivacy.knowledge import facts
from rayprivacy.knowledge.names import public_names
from rayprivacy.methods.knowledge import counting, exhibits, outputs, plan
from rayprivacy.methods.knowledge.recipe import KnowledgeRecipe
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.models.trainable import merged, trainable
from rayprivacy.release.thresholded import ReleasedCounts
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.method import Output

Context = RunContext[KnowledgeRecipe]


def run(context: Context) -> Output:
    """Run, or finish, a recipe."""
    config, names = context.recipe.knowledge, _public_names(context)
    context.shard()
    if names is None:
        names = _released(context, plan.NAMES, counting.Asked(config)).keys
    found, rounds = facts.FACTS.empty_table(), list[ReleasedCounts]()
    for stage in (plan.ANSWERS, plan.AGAIN)[: config.rounds]:
        settled = frozenset((row["name"], row["attribute"]) for row in found.to_pylist())
        if len(settled) < len(names) * len(config.attributes):  # else nothing is open, and nothing is charged
            rounds.append(_released(context, stage, counting.Asked(config, names, settled)))
            found = facts.facts(pa.concat_tables(map(facts.answers, rounds)))
    context.make_way()
    with context.stage(plan.FACTS):
        written = outputs.write(context, found)
    figures = {"names": len(names), "facts": len(found), **outputs.learn(context, found, written)}
    return Output(figures=figures, exhibits=lambda: exhibits.of_facts(found, context.plan, config, len(names)))


def _public_names(context: Context) -> tuple[str, ...] | None:
    """The names of a public file, to which the run is held; None where names are found."""
    file = context.recipe.knowledge.names.file
    if file is None:
        return None
    names = tuple(public_names(file))
    context.run.bind(names=digest_json(names))
    return names


def _released(context: Context, stage: str, asked: counting.Asked) -> ReleasedCounts:
    """Count users, and release the counts, or find that done."""
    mechanism, question = context.plan.stage(stage).mechanism, asked.question
    parts, corpus = context.plan.parts, context.corpus.corpus_digest(context.key)
    with context.stage(stage):
        made_of = [corpus, parts, context.recipe.release_id, stage, question, mechanism.parameters]
        folder = context.run.private("counts") / digest_json(made_of)[:16]
        job = counting.Counting(asked, mechanism, context.shards.absolute(), context.key_path, folder)
        sums = counting.counted(job, parts, context.counter(plan.PARTS_COUNTED))
        return context.release_counts(stage, mechanism, sums, known=asked.known(), question=question).value


def try_base(recipe: KnowledgeRecipe, readings: Sequence[Reading]) -> Backbone | None:
    """Load and try the base model, where it is to learn the facts."""
    if recipe.knowledge.model is None:
        return None
    backbone = trial.load_base(recipe, readings)
    trial.check_packing(recipe.model.base, backbone)
    trial.try_saving(recipe.model, backbone, merged(trainable(backbone, AdapterConfig(kind="full")), backbone))
    return backbone


def reading_of(recipe: KnowledgeRecipe) -> Reading:
    """How a run reads a row: its text, with nothing in front; no model reads any."""
    config = recipe.knowledge.model
    return Reading(recipe.privacy.unit, (), no_context, config.max_tokens if config else 1)
