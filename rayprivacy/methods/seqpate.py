"""SeqPATE (Tian et al., NeurIPS 2022) as one road from private text to synthetic text.

    public prompts -> pseudo-sentences -> student warm start -> queries            (public)
    corpus -> users -> shards -> M teachers -> summed votes on the queries          (private)
    summed votes -> RELEASE GATE: sqrt(2) sensitivity, Gaussian noise, one charge   (released)
    noisy votes -> student -> synthetic text -> certificate, metrics, report        (free)

One user sits in one shard, hence in one teacher; the charge is `queries` Gaussian events. With unit 'record' one record
does so, and with 'phrase' one secret phrase sits in n_s shards at most. Everything right of the gate is
post-processing. The held-out evaluation reads private text and is marked so in metrics.json.
"""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file, save

from rayprivacy.accounting import published
from rayprivacy.core.artifacts import Released, digest_array, digest_bytes, digest_json
from rayprivacy.core.files import write_json
from rayprivacy.core.keys import load_or_create_key
from rayprivacy.corpus.phrases import load_phrases
from rayprivacy.corpus.prompts import load_prompts
from rayprivacy.corpus.shards import shard_corpus
from rayprivacy.corpus.verify import verify_shards
from rayprivacy.evaluation.language import synthetic_metrics
from rayprivacy.generation.decode import cut_prompts, sample
from rayprivacy.generation.students import Student
from rayprivacy.generation.targets import vote_targets
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.assumptions import assumptions
from rayprivacy.methods.certify import write_certificate
from rayprivacy.methods.comparison import check_comparison, compare_with_private
from rayprivacy.methods.ensemble import ensemble
from rayprivacy.methods.heldout import heldout_metrics
from rayprivacy.methods.phrase_metrics import phrase_metrics
from rayprivacy.methods.planning import open_seqpate, planned_mechanism, planned_queries, round_mechanism
from rayprivacy.methods.planted import planted_rows
from rayprivacy.methods.progress import ProgressGauges
from rayprivacy.methods.public_side import Round, bases, pseudo_rows, round_queries, save_tensors, warm_students
from rayprivacy.methods.run import Run
from rayprivacy.methods.seqpate_recipe import SeqPateRecipe
from rayprivacy.methods.session import run_session
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.features import Encoded
from rayprivacy.models.queries import Queries
from rayprivacy.models.save import save_model
from rayprivacy.release.gate import Gate
from rayprivacy.teachers.encoding_job import cache_features
from rayprivacy.teachers.pool import teacher_pool
from rayprivacy.teachers.spec import GroupSpec

HOW = "A language model trained on public text and on differentially private votes."


def run_seqpate(run: Run[SeqPateRecipe]) -> dict[str, Any]:
    """Run, or finish, one recipe; returns the certificate."""
    if run.measured:
        check_comparison(run.recipe)
    with closing(open_seqpate(run.recipe, run.ledger_head())) as ledger:
        return _run(run, ledger)


def _run(run: Run[SeqPateRecipe], ledger: Ledger) -> dict[str, Any]:
    recipe = run.recipe
    phrases = load_phrases(recipe.corpus.phrases) if recipe.corpus.phrases else None
    prompts = load_prompts(recipe.prompts)
    key_path = Path(recipe.privacy.key).absolute()
    key = load_or_create_key(key_path)
    with run_session(run, recipe.resources.address) as progress:
        # The corpus comes first: a wrong column costs seconds there, and minutes after the pseudo-sentences.
        with run.stage(f"corpus by {recipe.privacy.unit}"):
            shards = shard_corpus(
                recipe.corpus,
                key_path,
                recipe.teachers.count,
                recipe.teachers.stack,
                run.private("shards"),
                recipe.privacy.unit,
                planted_rows(run, key),
            )
            verify_shards(run.private("shards"), key, recipe.privacy.unit, phrases)
            progress.show("parts_sharded", recipe.teachers.parts, recipe.teachers.parts)
        with run.stage("base model"):
            backbone = load_backbone(recipe.model)
            run.bind(base_model=backbone.digest, prompts=digest_json(prompts))
        students, spec = _learn(run, backbone, prompts, Gate(ledger, recipe.privacy.account, key), progress)
    run.keep_ledger_head(ledger.head())
    with run.stage("synthetic text"):
        texts = _synthesise(run, backbone, students["student"], prompts)
    certificate = write_certificate(
        run,
        ledger,
        key,
        shards,
        backbone,
        assumptions=assumptions(recipe.privacy.unit, recipe.votes.noise),
        stages=[{"name": "votes", "epsilon": recipe.privacy.epsilon}],
        as_published=_as_published(recipe),
    )
    if run.measured:
        with run.stage("evaluation"):
            heldout = heldout_metrics(run, backbone, students, spec)
        synthetic = {"releasable": True, **synthetic_metrics(texts)}
        metrics = {"schema_version": 1, "synthetic": synthetic, "heldout": heldout, "timings_s": run.timings()}
        if phrases:
            asked = planned_mechanism(recipe)
            metrics["phrases"] = phrase_metrics(run.private("shards"), shards, phrases, asked, recipe.privacy.delta)
        write_json(run.root / "metrics.json", metrics)
        compare_with_private(run, backbone)
    return certificate


def _learn(
    run: Run[SeqPateRecipe], backbone: Backbone, prompts: list[str], gate: Gate, progress: ProgressGauges
) -> tuple[dict[str, Student], GroupSpec]:
    """Everything between the corpus and the student: the public side, the teachers, and the rounds of votes."""
    first, voted = Round(0, "0"), 0
    with run.stage("pseudo-sentences"):
        rows = pseudo_rows(run, backbone, prompts, backbone.model, first)
    with run.stage("public bases and warm start"):
        untrained, warm = warm_students(run, backbone, bases(run, backbone, rows), rows)
    spec, student = ensemble(run, backbone), warm
    with run.stage("features of private text"):
        run.track(cache_features(spec, run.recipe.resources), run.recipe.teachers.parts, "parts")
    with teacher_pool(spec, run.recipe.resources) as pool:
        with run.stage("teachers"):
            done = progress.stacks(pool.train(), run.recipe.teachers)
            run.track(done, run.recipe.teachers.parts, "stacks")
        for number in range(run.recipe.votes.rounds):
            asked = Round.of(number, student)
            if number:
                with run.stage("pseudo-sentences"):
                    rows = pseudo_rows(run, backbone, prompts, student.model(), asked)
            with run.stage("query selection"):
                queries = round_queries(run, backbone, rows, student, asked)
            mechanism = round_mechanism(run.recipe, len(queries))
            with run.stage("votes"):
                sums, manifest = pool.vote(queries, mechanism, asked.rows(run))
                voted += len(queries)
                progress.show("queries_voted", voted, planned_queries(run.recipe))
            with run.stage("release gate"):
                votes = gate.release_votes(run.recipe.release_id, mechanism, sums, manifest)
            with run.stage("student"):
                student = _distilled(run, student, rows, queries, votes)
    return {"base": untrained, "base_pseudo": warm, "student": student}, spec


def _distilled(
    run: Run[SeqPateRecipe], student: Student, rows: Encoded, queries: Queries, votes: Released[Any]
) -> Student:
    # Named by the votes: other votes (a changed corpus, a new charge) are another student.
    path = run.public(f"student-{digest_array(votes.value)[:16]}.safetensors")
    if not path.exists():
        noisy = torch.from_numpy(votes.value.astype(np.float32))
        targets = vote_targets(noisy, queries, run.recipe.votes.radius is not None, run.recipe.student)
        save_tensors(path, student.distilled(queries, targets, rows, run.recipe.student).state())
    return student.restored(load_file(path))


def _synthesise(run: Run[SeqPateRecipe], backbone: Backbone, student: Student, prompts: list[str]) -> list[str]:
    path, config = run.root / "synthetic.parquet", run.recipe.generation
    mark = {b"student": digest_bytes(save(student.state())).encode()}
    if not path.exists() or pq.read_schema(path).metadata != mark:
        model = student.model()
        save_model(model, backbone.tokenizer, run.root / "model", run.recipe.release_id, HOW)
        texts = [backbone.text(ids) for ids in sample(model, backbone, cut_prompts(prompts, config), config)]
        table = pa.table({"text": texts}).replace_schema_metadata(mark)
        pq.write_table(table, path.with_suffix(".tmp"), compression="zstd")
        path.with_suffix(".tmp").replace(path)
    return [str(text) for text in pq.read_table(path)["text"].to_pylist()]


def _as_published(recipe: SeqPateRecipe) -> dict[str, Any] | None:
    if recipe.votes.noise != "gaussian" or recipe.votes.radius is not None:
        return None  # the paper has a figure for its own mechanism alone
    mechanism = planned_mechanism(recipe)
    figure = published.seqpate(mechanism.queries, mechanism.sigma, recipe.privacy.delta)
    return {figure.label: figure.epsilon}
