"""What the benchmarks share: everything up to the point where teachers can be trained, and what is measured on."""

from collections import deque
from pathlib import Path

import torch

from rayprivacy.core.keys import load_or_create_key
from rayprivacy.corpus.manifest import read_holdout
from rayprivacy.corpus.shards import shard_corpus
from rayprivacy.methods.seqpate.public_side import FIRST, bases, ensemble, pseudo_rows, warm_students
from rayprivacy.methods.seqpate.students import Student
from rayprivacy.models.adapters import Basis
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Encoded, encode, join
from rayprivacy.models.settings import ModelConfig
from rayprivacy.runs.directory import Run
from rayprivacy.teachers.encoding import shards_of
from rayprivacy.teachers.encoding_job import cache_features
from rayprivacy.teachers.settings import TeachersConfig
from rayprivacy.teachers.spec import GroupSpec

HALVES = ("dev", "test", "all")
READ_SPEAKERS, READ_SENTENCES = 130, 15


def heldout_rows(shards: Path, backbone: Backbone, config: TeachersConfig, half: str) -> Encoded:
    """The first sentences of held-out speakers, who are split into two halves, with the states of a model.

    Args:
        shards: folder of a sharded corpus.
        backbone: the model.
        config: how sentences are cut and packed.
        half: `dev`, `test`, or `all` of them.
    """
    table = read_holdout(shards)
    by_user: dict[str, list[str]] = {}
    for user, text in zip(table["user"].to_pylist(), table["text"].to_pylist(), strict=True):
        by_user.setdefault(user, []).append(text)
    halves = {"dev": slice(0, None, 2), "test": slice(1, None, 2), "all": slice(None)}
    read = sorted(by_user)[halves[half]][: READ_SPEAKERS if half == "all" else READ_SPEAKERS // 2]
    documents = [
        [backbone.document(text, config.max_tokens) for text in by_user[user][:READ_SENTENCES]] for user in read
    ]
    parts = [encode(backbone, own, config.row_tokens, config.max_rows) for own in documents]
    return join(parts, config.row_tokens, backbone.width)


def prepared(
    run: Run, backbone: Backbone, prompts: list[str], model: ModelConfig | None = None
) -> tuple[Encoded, Student, Student, GroupSpec]:
    """Shard, write and encode pseudo-sentences, warm the student up, and cache features, or find it all done.

    Ray must be started. `model` is how actors load the backbone, where the recipe does not say it.

    Returns:
        The encoded pseudo-sentences, the student before them, the student after them, and the ensemble.
    """
    rows, base, warm, spec = before_features(run, backbone, prompts, model)
    with run.stage("features"):
        deque(cache_features(spec, run.recipe.resources), maxlen=0)
    return rows, base, warm, spec


def before_features(
    run: Run, backbone: Backbone, prompts: list[str], model: ModelConfig | None = None
) -> tuple[Encoded, Student, Student, GroupSpec]:
    """The same without features of private text."""
    recipe = run.recipe
    teachers, key = recipe.teachers, Path(recipe.privacy.key).absolute()
    load_or_create_key(key)
    shards = run.private("shards")
    with run.stage("corpus"):
        shard_corpus(recipe.corpus, key, teachers.count, teachers.stack, shards, recipe.privacy.unit)
    with run.stage("public side"):
        rows = pseudo_rows(run, backbone, prompts, backbone.model, FIRST)
        base, warm = warm_students(run, backbone, bases(run, backbone, rows), rows)
    return rows, base, warm, ensemble(run, backbone, model or run.recipe.model)


def learnt_tokens(spec: GroupSpec) -> int:
    """Examples that all teachers learn from, each counted as often as it is seen."""
    shortlist, total = Basis.load(spec.basis).shortlist, 0
    for part in range(spec.teachers.parts):
        for names in shards_of(spec, spec.teachers.members(part)):
            targets = join(spec.store.read(names), spec.teachers.row_tokens, 0).examples.targets
            total += spec.teachers.steps(int(torch.isin(targets, shortlist).sum())) * spec.teachers.batch
    return total
