"""Where the teachers of a run live: their features, their files, and what decides that they are these teachers."""

from pathlib import Path

from rayprivacy.core.artifacts import digest_file, digest_json
from rayprivacy.methods.seqpate.public_side import WARM
from rayprivacy.methods.seqpate.recipe import SeqPateRecipe
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.settings import ModelConfig
from rayprivacy.models.store import FeatureStore
from rayprivacy.runs.clean import remember_store
from rayprivacy.runs.directory import Run
from rayprivacy.teachers.encoding import store_recipe
from rayprivacy.teachers.spec import GroupSpec
from rayprivacy.teachers.workspace import Workspace


def ensemble(run: Run[SeqPateRecipe], backbone: Backbone, model: ModelConfig) -> GroupSpec:
    """The ensemble of a run; its folders are made if they are missing.

    Args:
        run: the run.
        backbone: the public model that it stands on.
        model: how actors load it.
    """
    recipe, resources = run.recipe, run.recipe.resources
    basis, warm = run.public("basis.safetensors"), run.public(WARM)
    store = FeatureStore(
        root=Path(resources.features).absolute() if resources.features else run.private("features"),
        recipe=store_recipe(backbone.digest, recipe.teachers),
        key_path=Path(recipe.privacy.key).absolute(),
        encrypt=resources.encrypt_features,
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
