"""A run directory on disk, with whatever a test wants changed."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from run_directory import AUDIT, EVALUATION, RECIPE, certificate, metrics, texts

from rayprivacy.reporting import render


@pytest.fixture(autouse=True)
def no_pictures(request, monkeypatch):
    """To draw them takes longer than all else: test_pictures does."""
    if request.path.name != "test_pictures.py":
        monkeypatch.setattr(render, "write_pictures", lambda *_: [])


@pytest.fixture
def make_run(tmp_path):
    def make(
        cert=None,
        figures=None,
        name="",
        recipe=RECIPE,
        model=False,
        audited=False,
    ):
        folder = tmp_path / name
        (folder / "model" if model else folder).mkdir(parents=True, exist_ok=True)
        files = {"certificate": certificate() | (cert or {}), "metrics": metrics() | (figures or {})}
        files |= {"audit": AUDIT, "evaluation": EVALUATION} if audited else {}
        files |= {"model/config": {}} if model else {}
        for file, content in files.items():
            (folder / f"{file}.json").write_text(json.dumps(content))
        (folder / "recipe.yaml").write_text(recipe if isinstance(recipe, str) else yaml.safe_dump(recipe))
        pq.write_table(pa.table({"text": texts(), "prompt": ["unread"] * len(texts())}), folder / "synthetic.parquet")
        return folder

    return make
