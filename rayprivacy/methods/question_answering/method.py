"""The algorithm of question answering about private text (Yue, 2023, chapters 3 to 7 together).

    base model -> trained on public text, with `pretrain`                                             (public)
    corpus -> users -> coins -> clipped gradients of a language model                                 (private)
    their noisy sums, step by step, charged in chunks before they run -> the model                    (released)
    the model -> passages                                                                             (free)
    passages, public pairs, public annotations -> questions, answers, labels, values -> a set of them (free)

The chapters ask about real passages, and what they make is private. Here no question is asked about a private passage,
and nothing but the generator learns from one: behind it, no stage opens a private file. So questions are
post-processing, and any number of sets may be made of one release (`runs.questions`). What people asked about private
text (`questions.heldout`) is in no document that is trained on; the held-out evaluation reads it, and says so.
"""

import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import ray

from rayprivacy.blocks import pretrain, steps, writing
from rayprivacy.core.files import read_json
from rayprivacy.core.private import digest_json
from rayprivacy.dpsgd.units import Reading, no_context
from rayprivacy.generation.codes import Codes, CodesConfig
from rayprivacy.generation.writing import Written
from rayprivacy.ledger import claim
from rayprivacy.ledger.certificate import Certificate
from rayprivacy.methods.question_answering import exhibits, heldout
from rayprivacy.methods.question_answering.plan import STEPS, WRITING
from rayprivacy.methods.question_answering.recipe import AskedConfig, QuestionAnsweringRecipe
from rayprivacy.runs import directory, drive, plan
from rayprivacy.runs import heldout as users
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.method import SYNTHETIC, Output
from rayprivacy.runs.questions_plan import STAGES

HOW = "A language model fine-tuned with DP-SGD on private text."
Context = RunContext[QuestionAnsweringRecipe]


def run(context: Context) -> Output | None:
    """Run, or finish, a recipe; None when it was stopped after some chunks, with its model saved.

    Where nothing is measured (the trials of a search, shadow models) nothing is asked either.
    """
    recipe, reading = context.recipe, reading_of(context.recipe)
    config = recipe.questions if context.run.measured else None
    context.shard()
    if config is not None:
        heldout.real_questions(context.run)  # so that a cell that is none is refused before anything is charged
    backbone = pretrain.load_model(context)
    trained = steps.train(context, STEPS, steps.Training.of(recipe, reading))
    model = steps.save_trained(context, trained, recipe.adapter, HOW)
    if context.stops_early:
        return None
    with context.stage(WRITING):
        written = _write(context, trained)
    models, counter = {**context.public_models, "generator": model}, context.counter(plan.MODELS_MEASURED)
    found = Output(
        figures={"degenerate": written.degenerate, **context.public_figures},
        heldout=lambda: users.heldout_metrics(context.run, backbone, reading, models, counter),
    )
    if config is None:
        return found
    folder = _ask(context, config)
    measured = cache(lambda: heldout.question_metrics(context.run, backbone) if config.heldout else {})
    return replace(
        found,
        internal=lambda: {"questions": measured()} if config.heldout else {},
        exhibits=lambda: [*exhibits.of_set(folder, config), *heldout.tables(measured())],
    )


def reading_of(recipe: QuestionAnsweringRecipe) -> Reading:
    """How a run reads a row: its text, with nothing in front; what people asked about it is no part of that."""
    return Reading(recipe.privacy.unit, recipe.corpus.labels, no_context, recipe.training.max_tokens)


def _write(context: Context, trained: steps.Trained) -> Written:
    """The passages of this model, which may be there already."""
    root, config = context.run.root, context.recipe.generation
    asked, codes = [(0, "")] * config.texts, Codes(CodesConfig(), ())
    mark = digest_json([trained.inputs, config.texts])
    model, out = root / directory.MODEL, root / SYNTHETIC
    return writing.written_once(context, model, asked, config, codes, out, mark, plan.TEXTS_WRITTEN)


def _ask(context: Context, config: AskedConfig) -> Path:
    """Write the set of questions about the passages, with what the certificate will claim, or find it; its folder."""
    from rayprivacy.runs import questions  # of the extra `questions`, which a run of passages alone does without

    recipe, root = context.recipe, context.run.root
    said = claim.statement(Certificate.model_validate(drive.certificate_of(context))).headline
    material = questions.released_material(root, SYNTHETIC, (), recipe.release_id, said)
    folder, base = root / directory.QUESTIONS, recipe.model.base
    _forget_another(folder, material.inputs["digest"])
    questions.write_questions(
        material,
        questions.settled(folder, config.asked, base),
        folder,
        base=base,
        actors=recipe.resources.actors or int(ray.cluster_resources()["CPU"]),
        resume=True,
        stage=context.stage,
        count=context.run.meter.count,
    )
    return folder


def _forget_another(folder: Path, text: str) -> None:
    """Delete what was asked about another text of this run, which had not come to its certificate."""
    stages = folder / STAGES
    if stages.is_file() and read_json(stages)["inputs"]["digest"] != text:
        shutil.rmtree(folder)
