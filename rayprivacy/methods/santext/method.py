"""The algorithm of SanText and SanText+ (Yue et al., 2021, "Differential Privacy for Text Analytics via Natural Text
Sanitization", algorithms 1 and 2).

    public words, vectors -> table: the law of every word, and the exact bound of a token     (public)
    account: one charge for all words of a user                                               RELEASE GATE
    texts -> typed values made up anew -> words -> keyed draws from the table -> one file     (released)

Nothing is trained and nothing is learnt from the corpus. Everything that is made of the file is post-processing.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rayprivacy.blocks import trial
from rayprivacy.blocks.pretrain_plan import PRETRAINING, PRETRAINING_STEPS
from rayprivacy.core import files, private
from rayprivacy.dpsgd.units import Reading, no_context
from rayprivacy.methods.santext import heldout, mechanisms, plan, pretraining
from rayprivacy.methods.santext.recipe import CARD, SanTextRecipe
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.save import save_model
from rayprivacy.models.trainable import merged, trainable
from rayprivacy.runs import account, directory
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.method import Chart, Output, Table
from rayprivacy.sanitize import entities, labels
from rayprivacy.sanitize.job import SanitiseJob, sanitise_parts, write_release

HOW = "A public language model that learnt from public text alone to read text sanitised as this corpus is."
Context = RunContext[SanTextRecipe]


def run(context: Context) -> Output:
    """Run, or finish, a recipe."""
    found = mechanisms.confirmed(context.plan.stage(plan.WORDS).mechanism)
    context.run.bind(vocabulary=found.vocabulary.digest)
    context.shard()
    event = account.whole(context.plan.stage(plan.WORDS).charges)
    detector = entities.detector_of(context.recipe.sanitize.detector, context.recipe.sanitize.entities)
    made_of = private.digest_json([found.vocabulary.digest, detector.name])  # beside corpus and recipe
    job = _job(context, found, context.file_inputs(plan.WORDS, event, question=made_of))
    parts = context.plan.parts

    def write(path: Path) -> None:
        for _ in context.track(sanitise_parts(job, parts), plan.PARTS_SANITISED):
            pass
        write_release(job, parts, path)

    with context.stage(plan.WORDS):
        context.release_file(plan.WORDS, event, CARD.texts, write, question=made_of)
    return _measured(context, job, found, {"words_kept": found.keep, **_pretrain(context, found)})


def _pretrain(context: Context, found: mechanisms.Planned) -> Mapping[str, Any]:
    config, out = context.recipe.pretraining, context.run.root / directory.MODEL
    if config is None:
        return {}
    kept = context.run.public("pretraining.json")
    if not (kept.exists() and out.is_dir()):
        backbone = context.load_model(pretraining_text=private.digest_file(Path(config.text)))
        with context.stage(PRETRAINING):
            model, figures = pretraining.pretrained(backbone, found, config, context.counter(PRETRAINING_STEPS))
            save_model(model, backbone.tokenizer, out, context.recipe.release_id, HOW)
            files.write_json(kept, figures)
    return {"pretraining": files.read_json(kept)}


def _job(context: Context, found: mechanisms.Planned, inputs: str) -> SanitiseJob:
    recipe = context.recipe
    return SanitiseJob(
        config=recipe.sanitize,
        words=found.vocabulary.words,
        mechanism=found.mechanism,
        labels=labels.Labels(recipe.sanitize.labels, recipe.corpus.labels),
        shards=context.shards,
        key_path=context.key_path,
        release=(recipe.privacy.account, recipe.release_id, inputs),
        folder=context.run.private("sanitised") / f"{inputs[:16]}-{context.plan.parts}",
    )


def _measured(context: Context, job: SanitiseJob, found: mechanisms.Planned, figures: Mapping[str, Any]) -> Output:
    """What a finished run is measured by beside private text: attacks where they are asked for; pairs stay private."""
    parts, words = context.plan.parts, context.recipe.evaluation.attacked

    @cache
    def attacks() -> Mapping[str, Any]:
        return heldout.attacks(job, parts, found, load_backbone(context.recipe.model), context.key, words)

    def internal() -> Mapping[str, Any]:
        heldout.write_pairs(job, parts, context.key, context.run.private("pairs.txt"))
        return {"inference": attacks()} if words else {}

    def exhibits() -> list[Chart | Table]:
        return [*heldout.charts(found), *([heldout.attack_table(attacks())] if words else [])]

    return Output(figures=figures, internal=internal, exhibits=exhibits)


def try_base(recipe: SanTextRecipe, readings: Sequence[Reading]) -> Backbone | None:
    """Load and try the base model, where it is trained, or used in attacks."""
    if recipe.pretraining is None and not recipe.evaluation.attacked:
        return None
    backbone = trial.load_base(recipe, readings)
    if recipe.pretraining:
        trial.try_saving(recipe.model, backbone, merged(trainable(backbone, pretraining.ADAPTER), backbone))
    return backbone


def check_inputs(recipe: SanTextRecipe) -> None:
    """Refuse a public text that cannot be read, or a detector that is not installed, before anything is charged."""
    entities.detector_of(recipe.sanitize.detector, recipe.sanitize.entities)
    if recipe.pretraining:
        pretraining.public_texts(Path(recipe.pretraining.text))


def reading_of(recipe: SanTextRecipe) -> Reading:
    """How a run reads a row: its text, with nothing in front."""
    return Reading(recipe.privacy.unit, (), no_context, recipe.sanitize.max_tokens)
