"""Real teacher actors: killed while they work, failing on their data, and what leaves them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import torch

from rayprivacy.core.errors import ReleaseError
from rayprivacy.corpus.shards import part_path
from rayprivacy.models.adapters import Basis
from rayprivacy.models.features import Features
from rayprivacy.models.queries import Queries
from rayprivacy.models.settings import ModelConfig
from rayprivacy.release.vote import VoteMechanism
from rayprivacy.teachers.group import GroupSpec
from rayprivacy.teachers.pool import TeacherPool, teacher_pool
from rayprivacy.teachers.settings import ResourcesConfig, TeachersConfig
from rayprivacy.teachers.workspace import Workspace

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]
TEACHERS = TeachersConfig(count=10, stack=2, rank=16, shortlist=200, steps=2, batch=8)
RESOURCES = ResourcesConfig(actors=2, cpus_per_actor=0.5)
MECHANISM = VoteMechanism(queries=40, candidates=6, teachers=10, sigma=5.0)


@pytest.fixture
def spec(tmp_path: Path, tiny_base: Path, tiny_basis: Basis) -> GroupSpec:
    from safetensors.torch import save_file

    shards = tmp_path / "shards"
    shards.mkdir()
    for part in range(TEACHERS.parts):
        rows = [
            {"shard": s, "user": f"u{s}", "record": n, "text": f"hello {s} how are you today {n}"}
            for s in TEACHERS.members(part)
            for n in range(3)
        ]
        pq.write_table(pa.Table.from_pylist(rows), part_path(shards, part))
    basis = tmp_path / "basis.safetensors"
    save_file({name: getattr(tiny_basis, name).contiguous() for name in ("inward", "outward", "shortlist")}, basis)
    workspace = Workspace(tmp_path / "teachers", "recipe")
    workspace.prepare()
    return GroupSpec(ModelConfig(base=str(tiny_base), dtype="float32"), TEACHERS, shards, basis, workspace)


@pytest.fixture
def queries(tiny_features: Features) -> Queries:
    draw = torch.Generator().manual_seed(3)
    candidates = torch.stack([torch.randperm(400, generator=draw)[:6] for _ in range(40)])
    return Queries(tiny_features.hidden[:40].float(), candidates, torch.ones_like(candidates, dtype=torch.bool))


def test_killed_actors_change_nothing(spec: GroupSpec, queries: Queries) -> None:
    with teacher_pool(spec, RESOURCES) as pool:
        trained = set()
        for part in pool.train():
            if not trained:
                ray.kill(pool._actors[0], no_restart=False)
            trained.add(part)
        assert trained == set(range(TEACHERS.parts))
        calm, manifest = pool.vote(queries, MECHANISM)
        ray.kill(pool._actors[1], no_restart=False)
        shaken, again = pool.vote(queries, MECHANISM)
    assert manifest == again
    assert manifest.teachers == tuple(range(10))
    np.testing.assert_array_equal(calm.reveal(), shaken.reveal())


def test_spreading_the_work_changes_nothing(spec: GroupSpec, queries: Queries) -> None:
    sums = []
    for resources in (RESOURCES, ResourcesConfig(actors=1, cpus_per_actor=0.5, group=3, query_batch=32)):
        with teacher_pool(spec, resources) as pool:
            list(pool.train())
            sums.append(pool.vote(queries, MECHANISM)[0].reveal())
    np.testing.assert_array_equal(*sums)


def test_only_partial_sums_leave_an_actor(spec: GroupSpec, queries: Queries) -> None:
    with teacher_pool(spec, RESOURCES) as pool:
        list(pool.train())
        (actor,) = pool._actors[:1]
        answer = ray.get(actor.vote.remote((0, 1), queries, MECHANISM))
    assert vars(answer).keys() == {"parts", "teachers", "sums"}
    assert answer.sums.shape == (40, 6)
    assert answer.teachers == (0, 1, 2, 3)


def test_errors_of_private_code_are_one_sentence_without_its_text(spec: GroupSpec) -> None:
    secret = "the secret words of user 7"
    part_path(spec.shards, 1).write_bytes(secret.encode())
    with pytest.raises(ReleaseError) as caught, teacher_pool(spec, RESOURCES) as pool:
        list(pool.train())
    assert "training teachers" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert secret not in str(caught.value)


def test_a_group_that_cannot_start_is_one_sentence(spec: GroupSpec, queries: Queries) -> None:
    broken = GroupSpec(ModelConfig(base="./nowhere"), spec.teachers, spec.shards, spec.basis, spec.workspace)
    pool = TeacherPool(broken, RESOURCES)
    with pytest.raises(Exception, match="there is no such directory") as caught:
        list(pool.train())
    pool.close()
    assert "\n" not in str(caught.value)
