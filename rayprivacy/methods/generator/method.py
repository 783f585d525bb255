"""The algorithm of the DP-SGD generator (Yue et al., ACL 2023, "Synthetic Text Generation with Differential Privacy").

    base model -> trained on public text, with `pretrain`                                (public)
    labels -> RELEASE GATE: noisy shares of the control codes, one charge                (released)
    corpus -> users -> coins -> clipped gradients of a language model                    (private)
    their noisy sums, step by step, charged in chunks before they run -> the model       (released)
    control codes in those shares -> the model -> synthetic text -> report               (free)

With `match`, more texts are written than are released, and a noisy vote of the users decides which (`blocks.match`).

One user (or record) adds a vector of norm C at most to the sum of a step, and takes part by a coin of its own.
Everything right of the gate is post-processing: any number of texts may be written. The held-out evaluation reads
private text and is marked so in metrics.json.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rayprivacy.blocks import match, pretrain, steps, writing
from rayprivacy.core.private import Private, digest_json_list
from rayprivacy.corpus.manifest import owners_of, part_tables
from rayprivacy.dpsgd.units import Reading
from rayprivacy.generation.codes import CodedPrompts, Codes
from rayprivacy.generation.writing import Written
from rayprivacy.methods.generator.plan import CODES, STEPS, WRITING
from rayprivacy.methods.generator.recipe import GeneratorRecipe
from rayprivacy.release.histogram import HistogramMechanism, summed
from rayprivacy.runs import directory, heldout, plan, sealing
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.method import Output
from rayprivacy.work.mapping import on_numbers

_STEP = "counting labels"
HOW = "A language model fine-tuned with DP-SGD on private text; texts begin with a control code, if it has any."
Context = RunContext[GeneratorRecipe]


def run(context: Context) -> Output | None:
    """Run, or finish, a recipe; None when it was stopped after some chunks, with its model saved."""
    recipe = context.recipe
    codes, reading = recipe.control_codes, reading_of(recipe)
    context.shard()
    backbone = pretrain.load_model(context)
    shares = _shares(context, codes)
    training = steps.Training.of(recipe, reading)
    trained = steps.train(context, STEPS, training)
    model = steps.save_trained(context, trained, recipe.adapter, HOW)
    if context.stops_early:
        return None
    with context.stage(WRITING):
        written = _write(context, codes, shares, trained)
    matched = (
        {"match": match.match_texts(context, recipe.match, recipe.generation.texts, codes, shares)}
        if recipe.match
        else {}
    )
    models, counter = {**context.public_models, "generator": model}, context.counter(plan.MODELS_MEASURED)
    return Output(
        figures={"degenerate": written.degenerate, **context.public_figures, **matched},
        heldout=lambda: heldout.heldout_metrics(context.run, backbone, reading, models, counter),
        exhibits=lambda: [table for figures in matched.values() for table in match.exhibits(figures)],
        codes=codes,
    )


def reading_of(recipe: GeneratorRecipe) -> Reading:
    """How a run reads a row: its text behind the control code of its labels."""
    prefix = recipe.control_codes.prefix
    return Reading(recipe.privacy.unit, recipe.corpus.labels, prefix, recipe.training.max_tokens)


def _shares(context: Context, codes: Codes) -> Any:
    with context.stage(CODES):
        mechanism = context.plan.stage(CODES).mechanism
        if mechanism is None:
            return codes.uniform
        sums = label_sums(context.shards, context.plan.parts, codes, mechanism)
        return context.release_histogram(CODES, mechanism, sums, question=codes.digest).value


def _write(context: Context, codes: Codes, shares: Any, trained: steps.Trained) -> Written:
    """The synthetic text of this model and these shares, which may be there already; a release has one model."""
    root, config = context.run.root, context.recipe.generation
    path, texts = match.text_file(context.run, context.recipe.match), context.recipe.candidates(config.texts)
    prompts = CodedPrompts(codes.draw(shares, texts, config.seed), codes)
    mark = digest_json_list(trained.inputs, prompts)
    return writing.written_once(context, root / directory.MODEL, prompts, config, codes, path, mark, plan.TEXTS_WRITTEN)


@sealing.sealed(_STEP)
def label_sums(shards: Path, parts: int, codes: Codes, mechanism: HistogramMechanism) -> Private[npt.NDArray[np.int64]]:
    """The private sums [cells] of all users' (or records') shares of the control codes. Ray must be started."""
    job = (shards.absolute(), codes, mechanism)
    found = [sums for _, sums in on_numbers(_sums_of_part, job, range(parts), _STEP, sealing.SEAL)]
    return Private(np.sum(found, axis=0, dtype=np.int64))


@sealing.sealed(_STEP)
def _sums_of_part(job: tuple[Path, Codes, HistogramMechanism], part: int) -> npt.NDArray[np.int64]:
    shards, codes, mechanism = job
    found = [sums_of(rows, codes, mechanism) for rows in part_tables(shards, part)]
    return np.asarray(np.sum(found, axis=0, dtype=np.int64))


def sums_of(rows: pa.Table, codes: Codes, mechanism: HistogramMechanism) -> npt.NDArray[np.int64]:
    """Sums [cells] over the users (or records) of some rows, all rows of a user among them."""
    cells = np.array([codes.index(row) for row in rows.select(codes.columns).to_pylist()], dtype=np.int64)
    return summed(mechanism, owners_of(rows, mechanism.unit), cells[:, None])
