"""What the benchmarks of teachers share: everything up to the point where teachers can be trained."""

from pathlib import Path

from rayprivacy.core.keys import load_or_create_key
from rayprivacy.corpus.shards import shard_corpus
from rayprivacy.generation.students import Student
from rayprivacy.methods.ensemble import ensemble
from rayprivacy.methods.public_side import Round, bases, pseudo_rows, warm_students
from rayprivacy.methods.run import Run
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Encoded
from rayprivacy.teachers.encoding_job import cache_features
from rayprivacy.teachers.spec import GroupSpec


def prepared(run: Run, backbone: Backbone, prompts: list[str]) -> tuple[Encoded, Student, Student, GroupSpec]:
    """Shard, write and encode pseudo-sentences, warm the student up, and cache features, or find it all done.

    Ray must be started.

    Returns:
        The encoded pseudo-sentences, the student before them, the student after them, and the ensemble.
    """
    recipe = run.recipe
    teachers, key = recipe.teachers, Path(recipe.privacy.key).absolute()
    load_or_create_key(key)
    shards = run.private("shards")
    with run.stage("corpus"):
        shard_corpus(recipe.corpus, key, teachers.count, teachers.stack, shards, recipe.privacy.unit)
    with run.stage("public side"):
        rows = pseudo_rows(run, backbone, prompts, backbone.model, Round(0, "0"))
        base, warm = warm_students(run, backbone, bases(run, backbone, rows), rows)
    spec = ensemble(run, backbone)
    with run.stage("features"):
        run.track(cache_features(spec, recipe.resources), teachers.parts, "parts")
    return rows, base, warm, spec
