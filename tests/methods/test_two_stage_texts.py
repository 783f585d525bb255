"""What the second stage asks of its texts: that they do not go on with the trees that they are written from."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayprivacy.methods.two_stage import method
from rayprivacy.methods.two_stage.recipe import TwoStageRecipe


def test_no_text_may_hold_a_name_of_the_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    path = tmp_path / "trees.parquet"
    pq.write_table(pa.table({"text": ["(Yield (Today))", "(Find (Recipient))", "(no tree"]}), path)
    run = SimpleNamespace(root=tmp_path, public=lambda name: path)
    context: Any = SimpleNamespace(run=run, recipe=TwoStageRecipe.parse({}))
    monkeypatch.setattr(method.writing, "written_once", lambda *_, **named: asked.update(named))
    method._write_texts(context, SimpleNamespace(inputs="digest"))  # type: ignore[arg-type]
    assert asked["names"] == {"Yield", "Today", "Find", "Recipient"}
