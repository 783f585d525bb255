"""Internal evaluation on held-out users, against what one would use instead of the student.

Four models share the trunk and differ in the head: the public base, base + pseudo-sentences (the student before any
vote), the student, and a non-private fine-tune on all private features (an upper bound that is never released). All
figures here read private text and are outside the certificate: `releasable: false`.
"""

from collections import defaultdict
from typing import Any

from rayprivacy.corpus.shards import read_holdout
from rayprivacy.evaluation.language import bleu, perplexity
from rayprivacy.evaluation.lengths import length_summary
from rayprivacy.evaluation.likelihood import total_nll
from rayprivacy.generation.decode import greedy
from rayprivacy.generation.student import adapted_model, fit_next_token
from rayprivacy.methods.public_side import PublicSide
from rayprivacy.methods.run import Run
from rayprivacy.models.adapters import HeadAdapter
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Features, concatenate, encode_documents
from rayprivacy.teachers.workspace import Workspace

WHY = "measured on private held-out text, or on a model that read private text without noise"
PREFIX_WORDS, LEAST_WORDS = 4, 8
NONPRIVATE_BATCH, NONPRIVATE_RATE = 128, 3e-3


def heldout_metrics(
    run: Run, backbone: Backbone, public: PublicSide, student: HeadAdapter, workspace: Workspace
) -> dict[str, Any]:
    """Perplexity and Bleu of the four models on held-out users; None where no user is held out."""
    texts = _heldout_texts(run)
    if not texts:
        return {"releasable": False, "why": "corpus.holdout keeps nobody aside: nothing was measured"}
    models = {"base": HeadAdapter.zeros(public.basis, 1, 1), "base_pseudo": public.warm, "student": student}
    if run.recipe.evaluation.nonprivate_steps:
        models["nonprivate"] = _nonprivate(run, backbone, public, workspace)
    flat = [text for user in texts for text in user]
    examples = _features(run, backbone, texts)
    return {
        "releasable": False,
        "why": WHY,
        "perplexity": {
            name: perplexity(total_nll(model, examples, backbone.head), len(examples)) for name, model in models.items()
        },
        "bleu": _completions(run, backbone, flat, models),
        "lengths": length_summary(flat),
    }


def _heldout_texts(run: Run) -> list[list[str]]:
    table = read_holdout(run.private("shards"))
    by_user: dict[str, list[str]] = defaultdict(list)
    for user, text in zip(table["user"].to_pylist(), table["text"].to_pylist(), strict=True):
        by_user[user].append(text)
    return list(by_user.values())[: run.recipe.evaluation.users]


def _features(run: Run, backbone: Backbone, texts: list[list[str]]) -> Features:
    config = run.recipe.teachers
    return concatenate(
        [
            encode_documents(
                backbone,
                [backbone.document(text, config.max_tokens) for text in user],
                config.row_tokens,
                config.max_rows,
            )
            for user in texts
        ],
        backbone.width,
    )


def _nonprivate(run: Run, backbone: Backbone, public: PublicSide, workspace: Workspace) -> HeadAdapter:
    parts = [workspace.features(part) for part in range(run.recipe.teachers.parts)]
    private = concatenate(parts, backbone.width)
    steps = run.recipe.evaluation.nonprivate_steps
    return fit_next_token(
        public.warm, private, backbone.head, steps, NONPRIVATE_BATCH, NONPRIVATE_RATE, run.recipe.seed
    )


def _completions(
    run: Run, backbone: Backbone, texts: list[str], models: dict[str, HeadAdapter]
) -> dict[str, dict[str, float]]:
    """Continue the first words of held-out texts and compare with what their users wrote."""
    words = [text.split() for text in texts]
    long = [entry for entry in words if len(entry) >= LEAST_WORDS][: run.recipe.evaluation.completions]
    if not long:
        return {}
    prefixes = [" ".join(entry[:PREFIX_WORDS]) for entry in long]
    references = [" ".join(entry[PREFIX_WORDS:]) for entry in long]
    scores = {}
    for name, adapter in models.items():
        model = adapted_model(backbone, adapter)
        documents = greedy(model, backbone, prefixes, run.recipe.generation.max_tokens)
        written = [
            backbone.text(document[len(backbone.prefix(prefix)) :])
            for document, prefix in zip(documents, prefixes, strict=True)
        ]
        scores[name] = {f"bleu{order}": bleu(written, references, order) for order in (3, 4)}
    return scores
