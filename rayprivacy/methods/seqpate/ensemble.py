"""Where the teachers of a run live: their features, their files, and what decides that they are these teachers."""

from pathlib import Path
from typing import Any

from rayprivacy.core.artifacts import digest_file, digest_json
from rayprivacy.methods.seqpate.public_side import WARM, Round
from rayprivacy.methods.seqpate.recipe import SeqPateRecipe
from rayprivacy.models.backbone import Backbone, tokenizer_rules
from rayprivacy.models.queries import Queries
from rayprivacy.models.settings import ModelConfig
from rayprivacy.models.store import FeatureStore
from rayprivacy.runs.clean import remember_store
from rayprivacy.runs.directory import Run
from rayprivacy.teachers.encoding import store_recipe
from rayprivacy.teachers.spec import GroupSpec
from rayprivacy.teachers.workspace import Workspace


def ensemble(run: Run[SeqPateRecipe], backbone: Backbone, model: ModelConfig) -> GroupSpec:
    """The ensemble of a run; its folders are made if they are missing."""
    recipe, resources = run.recipe, run.recipe.resources
    basis, warm = run.public("basis.safetensors"), run.public(WARM)
    store = FeatureStore(
        root=Path(resources.features).absolute() if resources.features else run.private("features"),
        recipe=store_recipe(backbone.digest, recipe.teachers),
        key_path=Path(recipe.privacy.key).absolute(),
    )
    store.prepare()
    remember_store(run.root, store)
    origin = [store.recipe, recipe.teachers.model_dump(mode="json"), digest_file(basis), digest_file(warm)]
    workspace = Workspace(run.private("teachers"), digest_json(origin))
    workspace.prepare()
    return GroupSpec(
        model=model,
        teachers=recipe.teachers,
        unit=recipe.privacy.unit,
        shards=run.private("shards"),
        store=store,
        basis=basis,
        warm=warm,
        workspace=workspace,
        gpu=resources.gpus_per_actor > 0,
    )


def question_of(spec: GroupSpec, tokenizer: Any, asked: Round, queries: Queries, rows: Path) -> str:
    """Digest of what the teachers of an ensemble are asked in a round, and of what they were made of beside the corpus.

    The workspace of `spec` names base model, bases, warm student and settings; private text becomes tokens by the
    tokenizer; each round is a charge of its own; the queries point into the file `rows`.
    """
    teachers = [spec.workspace.recipe, tokenizer_rules(tokenizer)]
    return digest_json([asked.name, *teachers, queries.digest, digest_file(rows)])
