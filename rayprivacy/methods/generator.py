"""DP-SGD generator (Yue et al., ACL 2023, "Synthetic Text Generation with Differential Privacy: A Simple Recipe").

    labels -> RELEASE GATE: noisy shares of the control codes, one charge                (released)
    corpus -> users -> coins -> clipped gradients of a language model                    (private)
    their noisy sums, step by step, charged in chunks before they run -> the model       (released)
    control codes in those shares -> the model -> synthetic text -> report               (free)

One user (or record) adds a vector of norm C at most to the sum of a step, and takes part by a coin of its own.
Everything right of the gate is post-processing, with as many texts as one likes. The held-out evaluation reads private
text and is marked so in metrics.json.
"""

from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import ray
import torch
from safetensors.torch import load_file

from rayprivacy.core.artifacts import Released, digest_file, digest_json
from rayprivacy.core.files import write_atomic, write_json
from rayprivacy.core.keys import Key, load_or_create_key
from rayprivacy.corpus.manifest import ShardManifest
from rayprivacy.corpus.shards import shard_corpus
from rayprivacy.corpus.verify import verify_shards
from rayprivacy.dpsgd.job import run_training
from rayprivacy.dpsgd.loop import Job
from rayprivacy.dpsgd.units import Reading
from rayprivacy.evaluation.language import synthetic_metrics
from rayprivacy.generation.codes import Codes
from rayprivacy.generation.writing import Written, read_written, write_samples
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.assumptions import generator_assumptions
from rayprivacy.methods.certify import write_certificate
from rayprivacy.methods.comparison import check_comparison, compare_with_private
from rayprivacy.methods.door import ledger_address
from rayprivacy.methods.generator_heldout import heldout_metrics
from rayprivacy.methods.generator_plan import open_generator, planned_histogram, planned_steps
from rayprivacy.methods.generator_recipe import PART_FILES, GeneratorRecipe
from rayprivacy.methods.label_counts import label_sums
from rayprivacy.methods.planted import planted_rows
from rayprivacy.methods.progress import ProgressGauges
from rayprivacy.methods.run import Run
from rayprivacy.methods.session import run_session
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.save import save_model
from rayprivacy.models.trainable import merged, trainable
from rayprivacy.release.gate import Gate
from rayprivacy.release.steps import StepGate, StepRelease

HOW = "A language model fine-tuned with DP-SGD on private text; texts begin with a control code, if it has any."


def run_generator(run: Run[GeneratorRecipe], until: int | None = None) -> dict[str, Any]:
    """Run, or finish, one recipe; returns the certificate.

    Args:
        run: the run.
        until: chunks of steps after which to stop and to save the model alone, without a certificate (empty).
    """
    if run.measured:
        check_comparison(run.recipe)
    with closing(open_generator(run.recipe, run.ledger_head())) as ledger:
        return _run(run, ledger, until)


def _run(run: Run[GeneratorRecipe], ledger: Ledger, until: int | None) -> dict[str, Any]:
    recipe, key_path = run.recipe, Path(run.recipe.privacy.key).absolute()
    key, codes = load_or_create_key(key_path), Codes(recipe.codes, recipe.corpus.labels)
    reading = Reading(recipe.privacy.unit, recipe.corpus.labels, Prefixes(codes), recipe.training.max_tokens)
    with run_session(run, recipe.resources.address) as progress:
        with run.stage(f"corpus by {recipe.privacy.unit}"):
            shards = shard_corpus(
                recipe.corpus,
                key_path,
                PART_FILES,
                1,
                run.private("shards"),
                recipe.privacy.unit,
                planted_rows(run, key),
            )
            verify_shards(run.private("shards"), key, recipe.privacy.unit)
            progress.show("parts_sharded", PART_FILES, PART_FILES)
        with run.stage("base model"):
            backbone = load_backbone(recipe.model)
            run.bind(base_model=backbone.digest)
        with run.stage("shares of control codes"):
            shares = _shares(run, codes, Gate(ledger, recipe.privacy.account, key))
        with run.stage("DP-SGD"):
            release = _release(run, ledger, key, shards, backbone)
            trained = _trained(run, ledger, release, reading, progress, until)
        run.keep_ledger_head(ledger.head())
        model = _model(run, backbone, trained)
        if until is not None and until < release.rungs:
            return {}
        with run.stage("synthetic text"):
            written = _synthesise(run, codes, shares, release)
    certificate = write_certificate(
        run,
        ledger,
        key,
        shards,
        backbone,
        assumptions=generator_assumptions(recipe.privacy.unit, recipe.has_histogram),
        stages=[{"name": "label histogram and DP-SGD", "epsilon": recipe.privacy.epsilon}],
        recalled=recipe.model.dtype == "bfloat16" and StepGate(ledger, release).is_of_version_0_1,
    )
    if run.measured:
        _measure(run, backbone, reading, model, written)
        compare_with_private(run, backbone, codes)
    return certificate


def _measure(run: Run[GeneratorRecipe], backbone: Backbone, reading: Reading, model: Any, written: Written) -> None:
    with run.stage("evaluation"):
        heldout = heldout_metrics(run, backbone, reading, {"base": backbone.model, "generator": model})
    texts = [str(text) for text in pq.read_table(run.root / "synthetic.parquet")["text"].to_pylist()]
    synthetic = {"releasable": True, **synthetic_metrics(texts), "degenerate": written.degenerate}
    metrics = {"schema_version": 1, "synthetic": synthetic, "heldout": heldout, "timings_s": run.timings()}
    write_json(run.root / "metrics.json", metrics)


class Prefixes:
    """The control code of a record, from its labels; goes to the workers."""

    def __init__(self, codes: Codes) -> None:
        self._codes = codes

    def __call__(self, labels: Any) -> str:
        """The text in front of a record."""
        return self._codes.text(self._codes.index(labels))


def _shares(run: Run[GeneratorRecipe], codes: Codes, gate: Gate) -> Any:
    mechanism = planned_histogram(run.recipe)
    if mechanism is None:
        return codes.uniform
    sums = label_sums(run.private("shards"), PART_FILES, codes, mechanism)
    return gate.release_histogram(run.recipe.release_id, mechanism, sums).value


def _release(
    run: Run[GeneratorRecipe], ledger: Ledger, key: Key, shards: ShardManifest, backbone: Backbone
) -> StepRelease:
    recipe, inputs = run.recipe, (shards.corpus_digest(key), backbone.digest)
    return StepRelease.of(
        ledger,
        recipe.privacy.account,
        recipe.release_id,
        key,
        planned_steps(recipe),
        recipe.training.chunk,
        *inputs,
    )


def _trained(
    run: Run[GeneratorRecipe],
    ledger: Ledger,
    release: StepRelease,
    reading: Reading,
    progress: ProgressGauges,
    until: int | None,
) -> Released[dict[str, torch.Tensor]]:
    """The trained weights; every file on the way is named by the inputs that it was computed from."""
    recipe, privacy, inputs = run.recipe, run.recipe.privacy, release.inputs[:16]
    job = Job(
        model=recipe.model,
        adapter=recipe.adapter,
        training=recipe.resolved_training,
        engine=recipe.resources,
        reading=reading,
        shards=run.private("shards"),
        parts=PART_FILES,
        key_path=Path(privacy.key).absolute(),
        folder=run.private("training"),
        ledger=ledger_address(privacy, watched=not run.console.quiet),
        release=release,
        until=until,
    )
    # Kept beside what is public: another machine, whose last bits differ, could not train this model again.
    after = "" if job.last == release.rungs else f"-{job.last:05d}"
    gate, kept = StepGate(ledger, release), run.public(f"trained-{inputs}{after}.safetensors")
    if not kept.exists():
        run_training(job, run.console, progress.steps(recipe.training))
        gate.released(None, digest_file(job.weights), job.last)
        write_atomic(kept, job.weights.read_bytes())
    return gate.released(load_file(kept), digest_file(kept), job.last)


def _model(run: Run[GeneratorRecipe], backbone: Backbone, trained: Released[dict[str, torch.Tensor]]) -> Any:
    """The released model, saved as everybody loads one."""
    model = trainable(backbone, run.recipe.adapter)
    model.load_state_dict(trained.value, strict=False)
    plain = merged(model, backbone)
    save_model(plain, backbone.tokenizer, run.root / "model", run.recipe.release_id, HOW)
    return plain


def _synthesise(run: Run[GeneratorRecipe], codes: Codes, shares: Any, release: StepRelease) -> Written:
    """The synthetic text of this model and these shares, which may be there already; a release has one model."""
    path, config = run.root / "synthetic.parquet", run.recipe.generation
    prompts = [(cell, codes.text(cell)) for cell in codes.draw(shares, config.texts, config.seed)]
    mark = digest_json([release.inputs, prompts])
    if path.exists() and (written := read_written(path)).source == mark:
        return written
    actors = run.recipe.resources.actors or int(ray.cluster_resources()["CPU"])
    return write_samples(run.root / "model", prompts, config, codes, path, actors, engine=config.engine, source=mark)
