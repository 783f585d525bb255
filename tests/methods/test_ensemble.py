"""What the actors of an ensemble are told, from its recipe."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rayprivacy.core.keys import create_key
from rayprivacy.methods.registry import parse_recipe
from rayprivacy.methods.seqpate.public_side import ensemble


@pytest.mark.parametrize(("share", "gpu"), [(0.0, False), (0.25, True), (1.0, True)])
def test_actors_compute_on_a_gpu_where_they_reserve_a_share_of_one(share: float, gpu: bool, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    create_key(tmp_path / "key")
    for name in ("basis.safetensors", "warm.safetensors"):
        (tmp_path / name).write_bytes(b"public")
    said = {"privacy": {"key": str(tmp_path / "key")}, "resources": {"gpus_per_actor": share}}
    recipe = parse_recipe({"method": "seqpate", **said})
    run: Any = SimpleNamespace(recipe=recipe, root=tmp_path, public=tmp_path.joinpath, private=tmp_path.joinpath)
    backbone: Any = SimpleNamespace(digest="of the base")
    assert ensemble(run, backbone, recipe.model).gpu is gpu
