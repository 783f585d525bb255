"""Internal evaluation on held-out users, against what one would use instead of the student.

Four models are compared: the public base, base + pseudo-sentences (the student before any
vote), the student, and a non-private fine-tune on all private features (an upper bound that is never released). All
figures here read private text and are outside the certificate: `releasable: false`.
"""

import random
from collections import defaultdict
from typing import Any

from rayprivacy.corpus.shards import read_holdout
from rayprivacy.evaluation.language import bleu, perplexity
from rayprivacy.evaluation.lengths import length_summary
from rayprivacy.evaluation.likelihood import total_nll
from rayprivacy.generation.decode import greedy
from rayprivacy.generation.students import Student
from rayprivacy.methods.run import Run
from rayprivacy.methods.sealing import sealed
from rayprivacy.methods.seqpate_recipe import SeqPateRecipe
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Encoded, encode, join
from rayprivacy.teachers.encoding import HEAD_KINDS, shards_of
from rayprivacy.teachers.spec import GroupSpec

WHY = "measured on private held-out text, or on a model that read private text without noise"
PREFIX_WORDS, LEAST_WORDS = 4, 8
NONPRIVATE_BATCH, NONPRIVATE_RATE, NONPRIVATE_ROWS = 128, 3e-3, 4096


@sealed("the evaluation on held-out users")
def heldout_metrics(
    run: Run[SeqPateRecipe], backbone: Backbone, students: dict[str, Student], spec: GroupSpec
) -> dict[str, Any]:
    """Perplexity and Bleu of base, base_pseudo, student and a non-private model; little where no user is held out."""
    texts = _heldout_texts(run)
    if not texts:
        return {"releasable": False, "why": "corpus.holdout keeps nobody aside: nothing was measured"}
    models = dict(students)
    if run.recipe.evaluation.nonprivate_steps and spec.teachers.kind in HEAD_KINDS:
        models["nonprivate"] = nonprivate_student(run, backbone, students["base_pseudo"], spec)
    flat = [text for user in texts for text in user]
    rows = _encoded(run, backbone, texts)
    return {
        "releasable": False,
        "why": WHY,
        "perplexity": {
            name: perplexity(*total_nll(model.hidden(rows), rows, backbone.head)) for name, model in models.items()
        },
        "bleu": _completions(run, backbone, flat, models),
        "lengths": length_summary(flat),
    }


def _heldout_texts(run: Run[SeqPateRecipe]) -> list[list[str]]:
    table = read_holdout(run.private("shards"))
    by_user: dict[str, list[str]] = defaultdict(list)
    for user, text in zip(table["user"].to_pylist(), table["text"].to_pylist(), strict=True):
        by_user[user].append(text)
    return list(by_user.values())[: run.recipe.evaluation.users]


def _encoded(run: Run[SeqPateRecipe], backbone: Backbone, texts: list[list[str]]) -> Encoded:
    config = run.recipe.teachers
    parts = [
        encode(
            backbone,
            [backbone.document(text, config.max_tokens) for text in user],
            config.row_tokens,
            config.max_rows,
        )
        for user in texts
    ]
    return join(parts, config.row_tokens, backbone.width)


def nonprivate_student(run: Run[SeqPateRecipe], backbone: Backbone, warm: Student, spec: GroupSpec) -> Student:
    """The warm student fitted to private features without noise: an upper bound that must never be released."""
    names = [name for part in range(spec.teachers.parts) for shard in shards_of(spec, part) for name in shard]
    random.Random(run.recipe.seed).shuffle(names)
    groups, rows = [], 0
    for name in names:  # more than the steps can see, and a bound on memory whatever the corpus
        groups += spec.store.read([name])
        rows += len(groups[-1].ids)
        if rows >= NONPRIVATE_ROWS:
            break
    private = join(groups, spec.teachers.row_tokens, backbone.width)
    steps = run.recipe.evaluation.nonprivate_steps
    return warm.fitted(private, steps, NONPRIVATE_BATCH, NONPRIVATE_RATE, run.recipe.seed)


def _completions(
    run: Run[SeqPateRecipe], backbone: Backbone, texts: list[str], models: dict[str, Student]
) -> dict[str, dict[str, float]]:
    """Continue the first words of held-out texts and compare with what their users wrote."""
    words = [text.split() for text in texts]
    long = [entry for entry in words if len(entry) >= LEAST_WORDS][: run.recipe.evaluation.completions]
    if not long:
        return {}
    prefixes = [" ".join(entry[:PREFIX_WORDS]) for entry in long]
    references = [" ".join(entry[PREFIX_WORDS:]) for entry in long]
    scores = {}
    for name, student in models.items():
        model = student.model()
        documents = greedy(model, backbone, prefixes, run.recipe.generation.max_tokens)
        written = [
            backbone.text(document[len(backbone.prefix(prefix)) :])
            for document, prefix in zip(documents, prefixes, strict=True)
        ]
        scores[name] = {f"bleu{order}": bleu(written, references, order) for order in (3, 4)}
    return scores
