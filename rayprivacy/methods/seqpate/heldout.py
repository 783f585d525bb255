"""Internal evaluation on held-out users, against what one would use instead of the student.

These are compared: the public base, what pretraining made of it, base + pseudo-sentences (the student before any
vote), the student, and the same head after some steps on private features without noise. That reference is never
released, and is no bound: it is not trained as the student is, which may end better. All figures here read private text
and are outside the certificate: `releasable: false`.
"""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rayprivacy.accounting.published import phrase_report
from rayprivacy.core.console import Told, nobody
from rayprivacy.corpus.manifest import ShardManifest, first_holdout
from rayprivacy.corpus.phrases import Phrases
from rayprivacy.corpus.verify import shards_per_phrase
from rayprivacy.evaluation.language import bleu, length_summary, perplexity_figures, row_nll
from rayprivacy.generation.decode import greedy
from rayprivacy.methods.seqpate.recipe import SeqPateRecipe
from rayprivacy.methods.seqpate.students import Student
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Row, driver_threads, encode_rows, join, pack
from rayprivacy.release.votes import VoteMechanism
from rayprivacy.runs.directory import Run
from rayprivacy.runs.sealing import sealed
from rayprivacy.teachers.encoding import shards_of
from rayprivacy.teachers.spec import GroupSpec

WHY = "measured on private held-out text, or on a model that read private text without noise"
WHY_PHRASES = "counted in private text: how many phrases occur in how many shards, after masking"
LEAST_WORDS = 8  # of a text that is continued
_FIRST, _REST = slice(4), slice(4, None)  # words that a model is given, and those that it continues with
NONPRIVATE_BATCH, NONPRIVATE_RATE, NONPRIVATE_ROWS = 128, 3e-3, 4096


@sealed("the evaluation on held-out users")
def heldout_metrics(
    run: Run[SeqPateRecipe], students: dict[str, Student], spec: GroupSpec, told: Told = nobody
) -> Mapping[str, Any]:
    """Perplexity and Bleu of the students by name and a non-private model; little where no user is held out."""
    texts = _heldout_texts(run)
    if not texts:
        return {"releasable": False, "why": "corpus.holdout keeps nobody aside: nothing was measured"}
    models = dict(students)
    if run.recipe.evaluation.nonprivate_steps and spec.teachers.kind == "square":
        models["nonprivate"] = nonprivate_student(run, students["base_pseudo"], spec)
    flat = [text for user in texts for text in user]
    long = [words for words in map(str.split, flat) if len(words) >= LEAST_WORDS][: run.recipe.evaluation.completions]
    nll: dict[int, Any] = {}
    scores: dict[int, dict[str, float]] = {}
    read_by: Backbone | None = None
    packed = _packed(run, students["base_pseudo"].backbone, texts)
    width = run.recipe.teachers.row_tokens
    for number, student in enumerate(models.values()):
        told(number)
        if id(student) in nll:  # without a warm start `base_pseudo` is the untrained student
            continue
        if student.backbone is not read_by:
            read_by = student.backbone
            rows = encode_rows(read_by, [row for _, row in packed], width, threads=driver_threads())
        nll[id(student)] = row_nll(student.hidden(rows), rows, read_by.head, driver_threads()).numpy()
        if long:
            scores[id(student)] = _bleu(student, long, run.recipe.generation.max_tokens)
    ids = {name: id(student) for name, student in models.items()}
    users = np.array([user for user, _ in packed])
    tokens = rows.predicts.sum(1).double().numpy()
    told(len(models))
    return {
        "releasable": False,
        "why": WHY,
        **perplexity_figures({name: nll[key] for name, key in ids.items()}, tokens, users),
        "bleu": {name: scores[key] for name, key in ids.items() if key in scores},
        "lengths": length_summary(flat),
    }


def _heldout_texts(run: Run[SeqPateRecipe]) -> list[list[str]]:
    table = first_holdout(run.private("shards"), run.recipe.evaluation.users)
    by_user: dict[str, list[str]] = defaultdict(list)
    for user, text in zip(table["user"].to_pylist(), table["text"].to_pylist(), strict=True):
        by_user[user].append(text)
    return list(by_user.values())


def _packed(run: Run[SeqPateRecipe], backbone: Backbone, texts: list[list[str]]) -> list[tuple[int, Row]]:
    """The rows of all users, with the number of the user: rows of like length are neighbours, and share a call."""
    config = run.recipe.teachers
    packed = []
    for number, user in enumerate(texts):
        documents = [backbone.document(text, config.max_tokens) for text in user]
        packed += [(number, row) for row in pack(documents, config.row_tokens, config.max_rows)]
    return sorted(packed, key=lambda each: each[1].filled)


def nonprivate_student(run: Run[SeqPateRecipe], warm: Student, spec: GroupSpec) -> Student:
    """The warm student after some steps on private features without noise; to compare with, never to be released."""
    groups, rows = [], 0
    for name in _shuffled(spec, random.Random(run.recipe.seed)):  # a bound on memory, and more than the steps can see
        groups += spec.store.read([name])
        rows += len(groups[-1].ids)
        if rows >= NONPRIVATE_ROWS:
            break
    private = join(groups, spec.teachers.row_tokens, warm.backbone.width)
    steps = run.recipe.evaluation.nonprivate_steps
    return warm.fitted(private, steps, NONPRIVATE_BATCH, NONPRIVATE_RATE, run.recipe.seed)


def _shuffled(spec: GroupSpec, draw: random.Random) -> Iterator[str]:
    """The names of all groups, part by part in random order; parts behind the last name that is used are not read."""
    for part in draw.sample(range(spec.teachers.parts), spec.teachers.parts):
        names = [name for shard in shards_of(spec, spec.teachers.members(part)) for name in shard]
        yield from draw.sample(names, len(names))


def _bleu(student: Student, long: list[list[str]], max_tokens: int) -> dict[str, float]:
    prefixes, references = ([" ".join(words[part]) for words in long] for part in (_FIRST, _REST))
    documents, backbone = greedy(student.model(), student.backbone, prefixes, max_tokens), student.backbone
    written = [backbone.text_after(prefix, document) for prefix, document in zip(prefixes, documents, strict=True)]
    return {f"bleu{order}": bleu(written, references, order) for order in (3, 4)}


def phrase_metrics(
    shards: Path, manifest: ShardManifest, phrases: Phrases, mechanism: VoteMechanism, delta: float
) -> Mapping[str, Any]:
    """What secret phrases cost by the shards that they occur in, as in table 2 of SeqPATE: average and worst epsilon.

    Internal, because it counts phrases. The noise covers a phrase in n_s shards; one that masking left in fewer shards
    changes fewer teachers, and is protected better. Only the figure at the bound is public.
    """
    counts = shards_per_phrase(shards, manifest, phrases)
    report = asdict(phrase_report(counts, mechanism.shards, mechanism.queries, mechanism.sigma, delta))
    figures = {name: report[name] for name in ("at_bound", "worst", "average", "histogram")}
    return {"releasable": report["releasable"], "why": WHY_PHRASES, "delta": delta, **figures}
