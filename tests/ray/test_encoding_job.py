"""The encoding job on a real Ray: encoders killed while they work, resumed jobs, and what failures say."""

import time
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from ray_processes import actors_of, log_text

from rayprivacy.core.errors import ClusterError, ConfigError, ReleaseError
from rayprivacy.core.keys import create_key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.manifest import part_path
from rayprivacy.models.settings import ModelConfig
from rayprivacy.models.store import FeatureStore
from rayprivacy.teachers import encoding_job
from rayprivacy.teachers.encoding import encode_part, is_cached, shards_of, store_recipe
from rayprivacy.teachers.encoding_job import cache_features
from rayprivacy.teachers.settings import ResourcesConfig, TeachersConfig
from rayprivacy.teachers.spec import GroupSpec
from rayprivacy.teachers.workspace import Workspace

pytestmark = pytest.mark.slow
with_ray = pytest.mark.usefixtures("local_ray")
TEACHERS = TeachersConfig(count=12, stack=2, max_tokens=20, row_tokens=32, max_rows=32)
RESOURCES = ResourcesConfig(actors=2, cpus_per_actor=0.5)
USERS = {f"user-{n}": [f"hello {n} how are you today, take the early train {m}" for m in range(20)] for n in range(36)}


def write_parts(spec, users):
    spec.shards.mkdir(exist_ok=True)
    kinds = [("shard", pa.int32()), ("user", pa.string()), ("record", pa.int32()), ("text", pa.large_string())]
    for part in range(spec.teachers.parts):
        rows = [
            {"shard": shard, "user": user, "record": record, "text": text}
            for shard in spec.teachers.members(part)
            for user, texts in users.items()
            if int(user.split("-")[1]) % spec.teachers.count == shard
            for record, text in enumerate(texts)
        ]
        pq.write_table(pa.Table.from_pylist(rows, pa.schema(kinds)), part_path(spec.shards, part))


@pytest.fixture
def spec(tiny_base, tmp_path):
    create_key(tmp_path / "key")
    store = FeatureStore(tmp_path / "features", store_recipe("base", TEACHERS), tmp_path / "key")
    model = ModelConfig(base=str(tiny_base), dtype="float32")
    paths = [tmp_path / name for name in ("basis", "warm")]
    workspace = Workspace(tmp_path / "teachers", "recipe")
    found = GroupSpec(model, TEACHERS, PrivacyUnit.USER, tmp_path / "shards", store, *paths, workspace)
    write_parts(found, USERS)
    return found


@pytest.fixture
def expected(spec, tiny_backbone, tmp_path, one_thread):
    """What one thread of one process computes."""
    alone = replace(spec, store=replace(spec.store, root=tmp_path / "alone"))
    alone.store.prepare()
    for part in range(TEACHERS.parts):
        encode_part(alone, part, tiny_backbone)
    return content(alone)


def content(spec):
    parts = range(spec.teachers.parts)
    names = sorted({name for part in parts for shard in shards_of(spec, spec.teachers.members(part)) for name in shard})
    return {
        name: [getattr(one, kind).contiguous().view(torch.uint8).numpy().tobytes() for kind in vars(one)]
        for name, one in zip(names, spec.store.read(names), strict=True)
    }


def stamps(spec):
    return {path.name: path.stat().st_mtime_ns for path in spec.store.folder.glob("*.safetensors")}


def _own(others):
    """Living actors that were started since."""
    return [process for process in actors_of("MapWorker") if process.pid not in others]


def _another(killed):
    """A living actor, which may have to start yet."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for process in actors_of("MapWorker"):
            if process.pid not in killed:
                return process
        time.sleep(0.05)
    raise AssertionError("no actor came in place of a killed one")


@with_ray
def test_killed_encoders_lose_nothing(spec, expected):
    others = {process.pid for process in actors_of("MapWorker")}  # of a test before, whose end nobody waited for
    finished: list[int] = []
    killed = set(others)
    for part in cache_features(spec, RESOURCES):
        finished.append(part)
        if len(finished) <= 2:
            victim = _another(killed)
            victim.kill()
            killed.add(victim.pid)
    assert len(killed - others) == 2
    assert sorted(finished) == list(range(TEACHERS.parts))
    assert content(spec) == expected
    end = time.monotonic() + 60
    while _own(others) and time.monotonic() < end:
        time.sleep(0.1)
    assert not _own(others)


@with_ray
def test_a_job_goes_on_where_it_stopped_and_a_changed_user_is_one_group(spec, expected, tiny_backbone, monkeypatch):
    spec.store.prepare()
    encode_part(spec, 3, tiny_backbone)
    before = stamps(spec)
    assert sorted(cache_features(spec, RESOURCES)) == list(range(TEACHERS.parts))
    assert content(spec) == expected
    assert before.items() <= stamps(spec).items()
    before = stamps(spec)
    with monkeypatch.context() as nothing_starts:
        nothing_starts.setattr(encoding_job, "in_actors", None)
        assert list(cache_features(spec, RESOURCES)) == list(range(TEACHERS.parts))
        other = TEACHERS.model_copy(update={"count": 30, "stack": 7})
        more = replace(spec, teachers=other, shards=spec.shards / "more")
        write_parts(more, USERS)
        assert list(cache_features(more, RESOURCES)) == list(range(5))
    assert stamps(spec) == before
    write_parts(spec, USERS | {"user-7": ["other words"]})
    assert sorted(cache_features(spec, RESOURCES)) == list(range(TEACHERS.parts))
    assert len(stamps(spec)) == len(before) + 1
    assert len(content(spec).keys() - expected.keys()) == 1


@with_ray
def test_failures_are_one_sentence_without_private_text(spec, local_ray, monkeypatch):
    secret = "Xq7-private-words"
    part_path(spec.shards, 1).write_bytes(secret.encode())
    with pytest.raises(ReleaseError) as on_driver:
        list(cache_features(spec, RESOURCES))
    monkeypatch.setattr(encoding_job, "_is_cached", lambda *_args: False)
    with pytest.raises(ReleaseError) as on_worker:
        list(cache_features(spec, RESOURCES))
    for caught in (on_driver, on_worker):
        assert "encoding private text stopped" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert secret not in str(caught.value)
        assert caught.value.__context__ is None
    assert not [text for text in (secret, "how are you today") if text in log_text(local_ray)]


@with_ray
@pytest.mark.skipif(torch.cuda.is_available(), reason="torch has the GPU here")
def test_a_base_that_does_not_load_and_a_gpu_that_torch_does_not_find_are_one_sentence(spec):
    with pytest.raises(ConfigError, match=r"^[^\n]*there is no such directory[^\n]*$"):
        list(cache_features(replace(spec, model=ModelConfig(base="./nowhere")), RESOURCES))
    shared = ResourcesConfig(cpus_per_actor=0.5, gpus_per_actor=0.5)  # Ray believes in its GPU here
    with pytest.raises(ClusterError, match="torch finds no GPU on a node: install torch with CUDA there"):
        list(cache_features(replace(spec, gpu=True), shared))
    assert not any(is_cached(spec, part) for part in range(TEACHERS.parts))
