"""The algorithm of SeqPATE (Tian et al., NeurIPS 2022).

    base model -> trained on public text, with `pretrain`                          (public)
    public prompts -> pseudo-sentences -> student warm start -> queries            (public)
    corpus -> users -> shards -> M teachers -> summed votes on the queries          (private)
    summed votes -> RELEASE GATE: sqrt(2) sensitivity, Gaussian noise, one charge   (released)
    noisy votes -> student -> synthetic text -> certificate, metrics, report        (free)

With `match`, more texts are written than are released, and a noisy vote of the users decides which (`blocks.match`).

One user sits in one shard, hence in one teacher; the charge is `queries` Gaussian events. With unit 'record' one record
does so, and with 'phrase' one secret phrase sits in n_s shards at most. Everything right of the gate is
post-processing. The held-out evaluation reads private text and is marked so in metrics.json.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save

from rayprivacy.blocks import match, pretrain, trial, writing
from rayprivacy.core.private import Released, digest_array, digest_bytes, digest_json
from rayprivacy.corpus.phrases import Phrases, load_phrases
from rayprivacy.corpus.public import load_prompts
from rayprivacy.dpsgd.units import Reading, no_context
from rayprivacy.generation.codes import Codes, CodesConfig
from rayprivacy.generation.decode import cut_prompts
from rayprivacy.generation.writing import Written
from rayprivacy.methods.seqpate import heldout, plan, public_side
from rayprivacy.methods.seqpate.deep_student import DeepStudent
from rayprivacy.methods.seqpate.recipe import SeqPateRecipe
from rayprivacy.methods.seqpate.students import HeadStudent, Student, bare_model, vote_targets
from rayprivacy.models.adapters import Basis
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Encoded, Queries
from rayprivacy.models.loading import telling
from rayprivacy.models.save import save_model
from rayprivacy.runs import directory
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.method import Output
from rayprivacy.runs.plan import MODELS_MEASURED, TEXTS_WRITTEN
from rayprivacy.teachers.encoding_job import cache_features
from rayprivacy.teachers.pool import TeacherPool, teacher_pool
from rayprivacy.teachers.spec import GroupSpec

HOW = "A language model trained on public text and on differentially private votes."
Context = RunContext[SeqPateRecipe]


def run(context: Context) -> Output:
    """Run, or finish, a recipe."""
    recipe = context.recipe
    phrases = load_phrases(recipe.corpus.phrases) if recipe.corpus.phrases else None
    prompts = load_prompts(recipe.prompts)
    # The corpus comes first: a wrong column costs seconds there, and minutes after the pseudo-sentences.
    context.shard()
    backbone = pretrain.load_model(context, prompts=digest_json(prompts))
    with context.stage(plan.PSEUDO):
        counter = context.counter(plan.SENTENCES)
        rows = public_side.pseudo_rows(context.run, backbone, prompts, backbone.model, public_side.FIRST, counter)
    with context.stage(plan.BASES):
        basis = public_side.bases(context.run, backbone, rows)
        counter = context.counter(plan.WARM_STEPS)
        untrained, warm = public_side.warm_students(context.run, backbone, basis, rows, counter)
    spec = public_side.ensemble(context.run, backbone, context.model)
    with context.stage(plan.FEATURES):
        # Counted are all parts, also those without users and those that are in the store (see `encoding_job`).
        deque(context.track(cache_features(spec, recipe.resources), plan.PARTS), maxlen=0)
    with teacher_pool(spec, recipe.resources) as pool:
        with context.stage(plan.TRAINING):
            _train(context, pool)
        asking = _Asking(context, backbone, prompts, spec, pool)
        student: Student = warm
        for number in range(recipe.votes.rounds):
            student, rows = asking.round(number, student, rows)
    with context.stage(plan.WRITING):
        written = _write(context, backbone, student, prompts)
    matched = {"match": match.match_texts(context, recipe.match, recipe.generation.texts)} if recipe.match else {}
    students = {**_public_models(context, untrained, basis), "base_pseudo": warm, "student": student}
    return Output(
        figures={"degenerate": written.degenerate, **context.public_figures, **matched},
        heldout=lambda: heldout.heldout_metrics(context.run, students, spec, context.counter(MODELS_MEASURED)),
        internal=lambda: _phrase_block(context, phrases),
        exhibits=lambda: [table for figures in matched.values() for table in match.exhibits(figures)],
    )


def _public_models(context: Context, untrained: Student, basis: Basis) -> dict[str, Student]:
    if context.pretrained is None or context.base is None:
        return {"base": untrained}
    return {"base": HeadStudent.untrained(context.base, basis), "pretrained": untrained}


def try_base(recipe: SeqPateRecipe, readings: Sequence[Reading]) -> Backbone:
    """Load and try the base: teachers read rows of several documents, and a student is released."""
    backbone = trial.load_base(recipe, readings)
    trial.check_packing(recipe.model.base, backbone)
    with telling(recipe.model.base, "it can have no student"):
        deep = recipe.student.kind == "lora"
        student = DeepStudent.untrained(backbone, recipe.student).model() if deep else bare_model(backbone)
    trial.try_saving(recipe.model, backbone, student)
    return backbone


def reading_of(recipe: SeqPateRecipe) -> Reading:
    """How a run reads a row: its text with nothing in front."""
    return Reading(recipe.privacy.unit, (), no_context, recipe.teachers.max_tokens)


def _train(context: Context, pool: TeacherPool) -> None:
    show, trained = context.counter(plan.TEACHERS), 0
    show(trained)
    for piece in pool.train():
        trained += len(piece)
        show(trained)


@dataclass
class _Asking:
    """The rounds of questions of one run, of which `voted` queries were answered so far."""

    context: Context
    backbone: Backbone
    prompts: list[str]
    spec: GroupSpec
    pool: TeacherPool
    voted: int = 0

    def round(self, number: int, student: Student, rows: Encoded) -> tuple[Student, Encoded]:
        """Ask the teachers about text of a student; returns what it learnt from the votes, and its pseudo-sentences."""
        context, asked = self.context, public_side.Round.of(number, student)
        votes = context.plan.stage(plan.GATE).mechanism
        if number:
            with context.stage(plan.PSEUDO):
                counter, model = context.counter(plan.SENTENCES), student.model()
                rows = public_side.pseudo_rows(context.run, self.backbone, self.prompts, model, asked, counter)
        with context.stage(plan.SELECTION):
            count = plan.queries_by_round(votes.queries, context.recipe.votes.rounds)[number]
            queries = public_side.round_queries(context.run, self.backbone, rows, student, asked, count)
        mechanism = replace(votes, queries=len(queries))
        with context.stage(plan.VOTES):
            before, show = self.voted, context.counter(plan.VOTED)
            rows_file = asked.rows(context.run)
            sums, manifest = self.pool.vote(queries, mechanism, rows_file, lambda done: show(before + done))
            self.voted += len(queries)
        with context.stage(plan.GATE):
            question = public_side.question_of(self.spec, self.backbone.tokenizer, asked, queries, rows_file)
            released = context.release_votes(plan.GATE, mechanism, sums, manifest, question=question)
        with context.stage(plan.STUDENT):
            return _distilled(context, student, rows, queries, released, asked), rows


def _distilled(
    context: Context, student: Student, rows: Encoded, queries: Queries, votes: Released[Any], asked: public_side.Round
) -> Student:
    # Named by votes and questions: other votes (a changed corpus, a new charge) are another student.
    name = digest_array(votes.value)[:16] + (f"-{asked.name}" if asked.number else "")
    path, recipe = context.run.public(f"student-{name}.safetensors"), context.recipe
    if not path.exists():
        noisy = torch.from_numpy(votes.value.astype(np.float32))
        targets = vote_targets(noisy, queries, recipe.votes.radius is not None, recipe.student)
        told = context.counter(plan.STUDENT_STEPS)
        public_side.save_tensors(path, student.distilled(queries, targets, rows, recipe.student, told).state())
    return student.restored(load_file(path))


def _write(context: Context, backbone: Backbone, student: Student, prompts: list[str]) -> Written:
    folder, recipe = context.run.root / directory.MODEL, context.recipe
    config = recipe.generation.model_copy(update={"texts": recipe.candidates(recipe.generation.texts)})
    path, mark = match.text_file(context.run, recipe.match), digest_bytes(save(student.state()))
    context.make_way()
    # Always: the model that lies there may be that of another corpus, whose run died before it wrote its text.
    save_model(student.model(), backbone.tokenizer, folder, recipe.release_id, HOW)
    openers = [(0, prompt) for prompt in cut_prompts(prompts, config)]
    labels = Codes(CodesConfig(), ())
    return writing.written_once(context, folder, openers, config, labels, path, mark, TEXTS_WRITTEN, begun=True)


def _phrase_block(context: Context, phrases: Phrases | None) -> Mapping[str, Any]:
    if phrases is None:
        return {}
    asked, delta = context.plan.stage(plan.GATE).mechanism, context.recipe.privacy.delta
    return {"phrases": heldout.phrase_metrics(context.shards, context.corpus, phrases, asked, delta)}
