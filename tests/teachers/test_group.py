"""What an actor leaves on disk: written once, rebuilt byte for byte, and voting from the files alone."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from rayprivacy.core.errors import ShardError
from rayprivacy.corpus.shards import part_path
from rayprivacy.models.adapters import Basis
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Features, encode_documents
from rayprivacy.models.queries import Queries
from rayprivacy.models.settings import ModelConfig
from rayprivacy.release.vote import VoteMechanism
from rayprivacy.teachers.group import GroupSpec, TeacherGroup
from rayprivacy.teachers.settings import TeachersConfig
from rayprivacy.teachers.workspace import Workspace

CONFIG = TeachersConfig(count=5, max_tokens=20, row_tokens=32, rank=16, shortlist=200, steps=2, batch=8, stack=3)
TEXTS = {
    0: ["the sun is out", "i like bread"],
    1: ["play cards at home"],
    3: ["take the early train " * 20],
    4: ["hello", "", "so nice"],
}
SCHEMA = pa.schema([("shard", pa.int32()), ("user", pa.string()), ("record", pa.int32()), ("text", pa.large_string())])
FILES = ("part-00000.features.safetensors", "part-00000.teachers.safetensors", "part-00000.done")


def _write_part(folder: Path, part: int, texts: dict[int, list[str]]) -> None:
    rows = [
        {"shard": shard, "user": f"user-{shard}", "record": record, "text": text}
        for shard in CONFIG.members(part)
        for record, text in enumerate(texts.get(shard, []))
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), part_path(folder, part))


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """A group takes one thread for its process; give the others back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def spec(tiny_base: Path, tiny_basis: Basis, tmp_path: Path) -> GroupSpec:
    shards = tmp_path / "shards"
    shards.mkdir()
    for part in range(CONFIG.parts):
        _write_part(shards, part, TEXTS)
    tensors = {name: getattr(tiny_basis, name).contiguous() for name in ("inward", "outward", "shortlist")}
    save_file(tensors, tmp_path / "basis.safetensors")
    workspace = Workspace(tmp_path / "teachers", "recipe")
    workspace.prepare()
    model = ModelConfig(base=str(tiny_base), dtype="float32")
    return GroupSpec(model, CONFIG, shards, tmp_path / "basis.safetensors", workspace)


@pytest.fixture
def queries(tiny_features: Features) -> Queries:
    draw = torch.Generator().manual_seed(2)
    candidates = torch.stack([torch.randperm(400, generator=draw)[:6] for _ in range(40)])
    return Queries(tiny_features.hidden[:40].float(), candidates, torch.ones_like(candidates, dtype=torch.bool))


MECHANISM = VoteMechanism(queries=40, candidates=6, teachers=5, sigma=1.0)


def _bytes(spec: GroupSpec) -> dict[str, bytes]:
    return {name: (spec.workspace.root / name).read_bytes() for name in FILES}


def _stamps(spec: GroupSpec) -> dict[str, tuple[int, int]]:
    stats = {name: (spec.workspace.root / name).stat() for name in FILES}
    return {name: (found.st_mtime_ns, found.st_ino) for name, found in stats.items()}


def test_training_twice_leaves_the_files_untouched(spec: GroupSpec) -> None:
    assert TeacherGroup(spec).train(0) == 0
    before = _stamps(spec)
    assert TeacherGroup(spec).train(0) == 0
    assert _stamps(spec) == before


@pytest.mark.parametrize("lost", ["part-00000.done", "all"])
def test_a_lost_part_is_rebuilt_byte_for_byte(spec: GroupSpec, lost: str) -> None:
    TeacherGroup(spec).train(0)
    content, stamps = _bytes(spec), _stamps(spec)
    for name in FILES if lost == "all" else [lost]:
        (spec.workspace.root / name).unlink()
    TeacherGroup(spec).train(0)
    assert _bytes(spec) == content
    assert all(_stamps(spec)[name] != stamps[name] for name in FILES)


def test_features_are_those_of_each_shards_own_documents(spec: GroupSpec, tiny_backbone: Backbone) -> None:
    group = TeacherGroup(spec)
    group.train(0)
    expected = [
        encode_documents(tiny_backbone, [tiny_backbone.document(text, 20) for text in TEXTS.get(shard, [])], 32, 4)
        for shard in CONFIG.members(0)
    ]
    found = spec.workspace.features(0)
    assert found.targets.tolist() == [token for shard in expected for token in shard.targets.tolist()]
    difference = found.hidden.float() - torch.cat([shard.hidden for shard in expected]).float()
    assert difference.abs().max() <= 2**-5, "one thread against several: at most the last bit of a bfloat16"


def test_one_changed_user_changes_one_matrix(spec: GroupSpec) -> None:
    TeacherGroup(spec).train(0)
    before = spec.workspace.matrices(0)
    _write_part(spec.shards, 0, {**TEXTS, 1: ["something else altogether", "and more of it " * 50]})
    TeacherGroup(spec).train(0)
    after = spec.workspace.matrices(0)
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not torch.equal(before[1], after[1])
    assert torch.equal(after[2], torch.zeros(16, 16)), "shard 2 has nobody"


def test_votes_come_from_the_files_and_do_not_depend_on_grouping(spec: GroupSpec, queries: Queries) -> None:
    trainer = TeacherGroup(spec)
    for part in range(CONFIG.parts):
        trainer.train(part)
    together = TeacherGroup(spec).vote([0, 1], queries, MECHANISM)
    apart = [TeacherGroup(spec).vote([part], queries, MECHANISM) for part in (1, 0)]
    assert together.parts == (0, 1)
    assert together.teachers == (0, 1, 2, 3, 4)
    assert [partial.teachers for partial in apart] == [(3, 4), (0, 1, 2)]
    assert together.sums.dtype == np.int64
    assert np.array_equal(together.sums, apart[0].sums + apart[1].sums)
    MECHANISM.check(together.sums)


def test_a_vote_without_training_is_a_shard_error(spec: GroupSpec, queries: Queries) -> None:
    with pytest.raises(ShardError, match="part 1"):
        TeacherGroup(spec).vote([1], queries, MECHANISM)


def test_the_spec_holds_no_text_and_no_key(spec: GroupSpec) -> None:
    import pickle

    data = pickle.dumps(spec)
    assert len(data) < 4000
    assert b"user-0" not in data
    assert b"the sun is out" not in data
