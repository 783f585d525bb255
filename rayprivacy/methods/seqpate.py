"""SeqPATE (Tian et al., NeurIPS 2022) as one road from private text to synthetic text.

    public prompts -> pseudo-sentences -> student warm start -> queries            (public)
    corpus -> users -> shards -> M teachers -> summed votes on the queries          (private)
    summed votes -> RELEASE GATE: sqrt(2) sensitivity, Gaussian noise, one charge   (released)
    noisy votes -> student -> synthetic text -> certificate, metrics, report        (free)

One user sits in one shard, hence in one teacher; the charge is `queries` Gaussian events. With unit 'record' one record
does so, and with 'phrase' one secret phrase sits in n_s shards at most. Everything right of the gate is
post-processing. The held-out evaluation reads private text and is marked so in metrics.json.
"""

import json
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file, save_file

from rayprivacy.accounting import published
from rayprivacy.core.artifacts import Released, digest_array, digest_file, digest_json
from rayprivacy.core.files import write_atomic, write_json
from rayprivacy.core.keys import Key, load_key, load_or_create_key
from rayprivacy.core.units import NeighbouringRelation
from rayprivacy.corpus.manifest import ShardManifest
from rayprivacy.corpus.phrases import load_phrases
from rayprivacy.corpus.prompts import load_prompts
from rayprivacy.corpus.shards import shard_corpus
from rayprivacy.corpus.verify import verify_shards
from rayprivacy.evaluation.language import synthetic_metrics
from rayprivacy.generation.decode import cut_prompts, sample
from rayprivacy.generation.student import adapted_model, distill
from rayprivacy.ledger.certificate import build_certificate
from rayprivacy.ledger.certificate_text import to_markdown
from rayprivacy.ledger.filters.noise import gaussian_noise
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.assumptions import assumptions
from rayprivacy.methods.heldout import heldout_metrics
from rayprivacy.methods.phrase_metrics import phrase_metrics
from rayprivacy.methods.public_side import PublicSide, prepare_public
from rayprivacy.methods.recipe import Recipe
from rayprivacy.methods.run import Run
from rayprivacy.methods.session import ray_session
from rayprivacy.models.adapters import HeadAdapter
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.save import save_model
from rayprivacy.release.gate import Gate
from rayprivacy.release.vote import VoteMechanism
from rayprivacy.teachers.group import GroupSpec
from rayprivacy.teachers.pool import teacher_pool
from rayprivacy.teachers.workspace import Workspace


def planned_mechanism(recipe: Recipe, queries: int | None = None) -> VoteMechanism:
    """The vote mechanism of a recipe: its unit and bound on shards, and the smallest sigma that fits its budget."""
    count = queries or recipe.votes.queries
    sigma = gaussian_noise(count, recipe.privacy.budget, recipe.privacy.composition)
    return VoteMechanism(
        queries=count,
        candidates=recipe.votes.top_k,
        teachers=recipe.teachers.count,
        sigma=sigma,
        unit=recipe.privacy.unit,
        shards=recipe.corpus.max_shards_per_phrase or 1,
    )


def open_account(recipe: Recipe, expected_head: str | None = None) -> Ledger:
    """Open the ledger and refuse, before any work, what the account cannot pay.

    Raises:
        ConfigError: the secret phrases cannot be read, or could overlap.
        BudgetRefusedError: less is left than this run asks for, and it has not been charged before.
        LedgerError: the account protects another unit, relation or composition, or the ledger lacks the expected head.
    """
    if recipe.corpus.phrases:
        load_phrases(recipe.corpus.phrases)
    privacy, mechanism = recipe.privacy, planned_mechanism(recipe)
    key = load_key(Path(privacy.ledger_key)) if privacy.ledger_key else None
    ledger = Ledger.open(privacy.ledger, expected_head, key)
    ledger.ensure_account(
        privacy.account,
        privacy.unit,
        NeighbouringRelation.ADD_OR_REMOVE,
        privacy.budget,
        privacy.composition,
        corpus=privacy.corpus,
        plan=[mechanism.event],
    )
    if not ledger.charges_of(privacy.account, recipe.release_id):
        ledger.check(privacy.account, mechanism.event, mechanism.protection)
    return ledger


def run_seqpate(run: Run) -> dict[str, Any]:
    """Run, or finish, one recipe; returns the certificate."""
    with closing(open_account(run.recipe, run.ledger_head())) as ledger:
        return _run(run, ledger)


def _run(run: Run, ledger: Ledger) -> dict[str, Any]:
    recipe = run.recipe
    phrases = load_phrases(recipe.corpus.phrases) if recipe.corpus.phrases else None
    prompts = load_prompts(recipe.prompts)
    key_path = Path(recipe.privacy.key).absolute()
    key = load_or_create_key(key_path)
    with ray_session(recipe.resources.address):
        # The corpus comes first: a wrong column costs seconds there, and minutes after the pseudo-sentences.
        with run.stage(f"corpus by {recipe.privacy.unit}"):
            shards = shard_corpus(
                recipe.corpus,
                key_path,
                recipe.teachers.count,
                recipe.teachers.stack,
                run.private("shards"),
                recipe.privacy.unit,
            )
            verify_shards(run.private("shards"), key, recipe.privacy.unit, phrases)
        with run.stage("base model"):
            backbone = load_backbone(recipe.model)
        public = prepare_public(run, backbone, prompts)
        votes, workspace = _released_votes(run, public, Gate(ledger, recipe.privacy.account, key))
    run.keep_ledger_head(ledger.head())
    with run.stage("student"):
        student = _student(run, backbone, public, votes)
    with run.stage("synthetic text"):
        texts = _synthesise(run, backbone, student, prompts)
    certificate = _certify(run, ledger, key, shards, backbone)
    with run.stage("evaluation"):
        heldout = heldout_metrics(run, backbone, public, student, workspace)
    synthetic = {"releasable": True, **synthetic_metrics(texts)}
    metrics = {"schema_version": 1, "synthetic": synthetic, "heldout": heldout, "timings_s": run.timings()}
    if phrases:
        asked = planned_mechanism(recipe, len(public.queries))
        metrics["phrases"] = phrase_metrics(run.private("shards"), shards, phrases, asked, recipe.privacy.delta)
    write_json(run.root / "metrics.json", metrics)
    return certificate


def _released_votes(run: Run, public: PublicSide, gate: Gate) -> tuple[Released[Any], Workspace]:
    recipe = run.recipe
    basis = run.public("basis.safetensors")
    origin = [recipe.model.model_dump(), recipe.teachers.model_dump(), digest_file(basis)]
    workspace = Workspace(run.private("teachers"), digest_json(origin))
    workspace.prepare()
    spec = GroupSpec(recipe.model, recipe.teachers, run.private("shards"), basis, workspace)
    mechanism = planned_mechanism(recipe, len(public.queries))
    with teacher_pool(spec, recipe.resources) as pool:
        with run.stage("teachers"):
            run.track(pool.train(), recipe.teachers.parts, "teachers")
        with run.stage("votes"):
            sums, manifest = pool.vote(public.queries, mechanism)
    with run.stage("release gate"):
        return gate.release_votes(recipe.release_id, mechanism, sums, manifest), workspace


def _student(run: Run, backbone: Backbone, public: PublicSide, votes: Released[Any]) -> HeadAdapter:
    # Named by the votes: other votes (a changed corpus, a new charge) are another student.
    path = run.public(f"student-{digest_array(votes.value)[:16]}.safetensors")
    if not path.exists():
        noisy = torch.from_numpy(votes.value.astype(np.float32))
        student = distill(public.warm, public.queries, noisy, public.features, backbone.head, run.recipe.student)
        save_file({"matrix": student.matrix}, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)
    return HeadAdapter(public.basis, load_file(path)["matrix"])


def _synthesise(run: Run, backbone: Backbone, student: HeadAdapter, prompts: list[str]) -> list[str]:
    path, config = run.root / "synthetic.parquet", run.recipe.generation
    mark = {b"student": digest_array(student.matrix.numpy()).encode()}
    if not path.exists() or pq.read_schema(path).metadata != mark:
        model = adapted_model(backbone, student)
        save_model(model, backbone.tokenizer, run.root / "model", run.recipe.release_id)
        texts = [backbone.text(ids) for ids in sample(model, backbone, cut_prompts(prompts, config), config)]
        table = pa.table({"text": texts}).replace_schema_metadata(mark)
        pq.write_table(table, path.with_suffix(".tmp"), compression="zstd")
        path.with_suffix(".tmp").replace(path)
    return [str(text) for text in pq.read_table(path)["text"].to_pylist()]


def _certify(run: Run, ledger: Ledger, key: Key, shards: ShardManifest, backbone: Backbone) -> dict[str, Any]:
    recipe = run.recipe
    certificate = build_certificate(
        ledger,
        recipe.privacy.account,
        recipe.release_id,
        corpus_digest=shards.corpus_digest(key),
        run_request=recipe.privacy.budget,
        assumptions=assumptions(recipe.privacy.unit),
        test_key=key.is_test_key,
        versions={name: version(name) for name in ("rayprivacy", "ray", "torch", "transformers", "opendp")}
        | {"base model": f"{recipe.model.base} {backbone.digest[:16]}"},
        stages=[{"name": "votes", "epsilon": recipe.privacy.epsilon}],
        as_published=_as_published(recipe),
    )
    write_atomic(run.root / "certificate.json", (json.dumps(certificate, indent=2) + "\n").encode())
    write_atomic(run.root / "certificate.md", to_markdown(certificate).encode())
    return certificate


def _as_published(recipe: Recipe) -> dict[str, Any]:
    mechanism = planned_mechanism(recipe)
    figure = published.seqpate(mechanism.queries, mechanism.sigma, recipe.privacy.delta)
    return {figure.label: figure.epsilon}
