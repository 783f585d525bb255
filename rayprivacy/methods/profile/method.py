"""The algorithm of a profile.

    corpus -> users -> bounded counts by public cells, by word and by label     (private)
    bounded counts -> RELEASE GATE, a charge for the cells, one for the keys    (released)
    noisy counts -> intervals, suggestions, tables                              (free)

Nothing is trained, and no number is written down before it has noise: `profile.json` is made of released values alone.
"""

from typing import Any

from rayprivacy.accounting.events import to_json
from rayprivacy.core.files import SHARED, Json, write_json
from rayprivacy.dpsgd.units import Reading, no_context
from rayprivacy.methods.profile import figures
from rayprivacy.methods.profile.counting import Counting, count_users, question_of
from rayprivacy.methods.profile.plan import COUNTING, COUNTS, KEYWORDS, PARTS_COUNTED
from rayprivacy.methods.profile.recipe import PROFILE, ProfileRecipe
from rayprivacy.release.votes import SCALE
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.method import Output
from rayprivacy.runs.plan import Stage
from rayprivacy.runs.profiled import base_name

Context = RunContext[ProfileRecipe]


def run(context: Context) -> Output:
    """Run, or finish, a recipe."""
    context.shard()
    plan, charged = context.plan, {stage.name: stage for stage in context.plan.charged}
    job = _job(context, charged)
    question = question_of(job)
    with context.stage(COUNTING):
        sums, by_key = count_users(job, plan.parts, context.counter(PARTS_COUNTED))
    with context.stage(COUNTS):
        counts = context.release_histogram(COUNTS, job.totals, sums, question=question).value
    found = None
    if job.keys is not None:
        with context.stage(KEYWORDS):
            found = context.release_counts(KEYWORDS, job.keys, by_key, question=question).value
    profile = _about(context, charged) | figures.figures_of(counts, job.totals, found)
    context.make_way()
    write_json(context.run.root / PROFILE, profile, SHARED)
    return Output(exhibits=lambda: figures.tables(profile))


def _job(context: Context, charged: dict[str, Stage]) -> Counting:
    recipe, keys = context.recipe, charged.get(KEYWORDS)
    return Counting(
        shards=context.shards.absolute(),
        key_path=context.key_path,
        base=recipe.model.base,
        totals=charged[COUNTS].mechanism,
        keywords=recipe.profile.keywords,
        labels=recipe.corpus.labels,
        keys=keys.mechanism if keys else None,
    )


def _about(context: Context, charged: dict[str, Stage]) -> Json:
    """What the numbers are of, and the events that paid for them, which the certificate has as well."""
    recipe, corpus = context.recipe, context.recipe.corpus
    events: dict[str, Any] = {}
    for name, stage in charged.items():
        noise = {"noise_std": stage.mechanism.noise_std_grid / SCALE}
        events[name] = {"event": to_json(stage.event), **noise}
    if KEYWORDS in charged:
        events[KEYWORDS]["threshold"] = charged[KEYWORDS].mechanism.threshold / SCALE
    return {
        "schema_version": 1,
        "release_id": recipe.release_id,
        "account": recipe.privacy.account,
        "unit": recipe.privacy.unit,
        "columns": {"user": corpus.user, "text": corpus.text, "labels": list(corpus.labels)},
        "tokens_of": base_name(recipe.model.base),
        "confidence": figures.CONFIDENCE,
        "events": events,
        "left_out": list(figures.LEFT_OUT),
    }


def reading_of(recipe: ProfileRecipe) -> Reading:
    """How a run reads a row: its text, with nothing in front."""
    return Reading(recipe.privacy.unit, (), no_context, recipe.corpus.max_chars)
