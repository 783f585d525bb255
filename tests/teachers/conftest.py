"""What several files here begin with: a spec with an empty store, shards on disk, and queries."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rayprivacy.core.keys import create_key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.manifest import part_path
from rayprivacy.models.features import Queries
from rayprivacy.models.settings import ModelConfig
from rayprivacy.models.store import FeatureStore
from rayprivacy.teachers.settings import TeachersConfig
from rayprivacy.teachers.spec import GroupSpec
from rayprivacy.teachers.workspace import Workspace

SCHEMA = pa.schema([("shard", pa.int32()), ("user", pa.string()), ("record", pa.int32()), ("text", pa.large_string())])


@pytest.fixture
def spec_of(tiny_base: Path, tmp_path: Path) -> Callable[[TeachersConfig, str], GroupSpec]:
    """A spec of teachers whose states have a recipe; its store and its workspace are empty."""

    def made(teachers: TeachersConfig, recipe: str) -> GroupSpec:
        create_key(tmp_path / "key")
        (tmp_path / "shards").mkdir()
        store = FeatureStore(tmp_path / "features", recipe, tmp_path / "key")
        workspace = Workspace(tmp_path / "teachers", "recipe")
        store.prepare()
        workspace.prepare()
        model, files = ModelConfig(base=str(tiny_base), dtype="float32"), (tmp_path / "basis", tmp_path / "warm")
        return GroupSpec(model, teachers, PrivacyUnit.USER, tmp_path / "shards", store, *files, workspace)

    return made


@pytest.fixture(scope="session")
def table_of() -> Callable[[Mapping[tuple[int, str], Sequence[str]]], pa.Table]:
    """Rows as `shard_corpus` writes them, of texts by shard and user."""

    def made(texts: Mapping[tuple[int, str], Sequence[str]]) -> pa.Table:
        rows = [(*who, record, text) for who in sorted(texts) for record, text in enumerate(texts[who])]
        return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)

    return made


@pytest.fixture(scope="session")
def write_parts(table_of: Any) -> Callable[[GroupSpec, Mapping[tuple[int, str], Sequence[str]]], None]:
    def written(spec: GroupSpec, texts: Mapping[tuple[int, str], Sequence[str]]) -> None:
        spec.shards.mkdir(exist_ok=True)
        for part in range(spec.teachers.parts):
            inside = {who: said for who, said in texts.items() if who[0] in spec.teachers.members(part)}
            pq.write_table(table_of(inside), part_path(spec.shards, part))

    return written


@pytest.fixture(scope="session")
def asked() -> Callable[[torch.Tensor, torch.Tensor], Queries]:
    """Queries at some states: eight candidates each, and about two thirds of them allowed."""

    def made(hidden: torch.Tensor, context: torch.Tensor) -> Queries:
        draw = torch.Generator().manual_seed(5)
        candidates = torch.stack([torch.randperm(400, generator=draw)[:8] for _ in hidden])
        allowed = torch.rand(candidates.shape, generator=draw) < 0.7
        allowed[:, 0] = True
        return Queries(hidden, candidates, allowed, allowed / allowed.sum(1, keepdim=True), context)

    return made
