"""A run directory on disk, with whatever a test wants changed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from run_directory import RECIPE, certificate, metrics, texts


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    def make(cert: dict[str, Any] | None = None, figures: dict[str, Any] | None = None, name: str = "") -> Path:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "certificate.json").write_text(json.dumps(certificate() | (cert or {})))
        (folder / "metrics.json").write_text(json.dumps(metrics() | (figures or {})))
        (folder / "recipe.yaml").write_text(RECIPE)
        pq.write_table(pa.table({"text": texts(), "prompt": ["unread"] * len(texts())}), folder / "synthetic.parquet")
        return folder

    return make
