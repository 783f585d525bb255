"""`rayprivacy evaluate`: files in, a table and two files out, one sentence for bad input."""

import json
import re
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rayprivacy import api
from rayprivacy.cli import app
from rayprivacy.core.errors import ConfigError, CorpusError, RayPrivacyError
from rayprivacy.evaluation.settings import EvaluationConfig
from rayprivacy.evaluation.texts import read_texts

TREES = [f"(Find (F{row % 9} :n {row}))" for row in range(120)]
ROWS = [f"number {row % 97} asks number {row * 7 % 89} about line {row * 13 % 83}" for row in range(120)]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    users, topics = [f"u{row // 3}" for row in range(120)], ["odd", "even"] * 60
    columns = {"text": ROWS, "user": users, "topic": topics, "lispress": TREES}
    pq.write_table(pa.table(columns), tmp_path / "real.parquet")
    synthetic = {"text": ROWS[::-1], "topic": topics[::-1], "parse": ["(Find (F1))", "no tree", None] * 40}
    pq.write_table(pa.table(synthetic), tmp_path / "synthetic.parquet")
    held = [json.dumps({"text": f"{text} today", "user": "h", "topic": "odd"}) + "\n" for text in ROWS]
    (tmp_path / "holdout.jsonl").write_text("".join(held))
    return {name.stem: str(name) for name in tmp_path.iterdir()}


def test_it_prints_tables_and_writes_both_files(files: Any, tmp_path: Path, tiny_base: Path, monkeypatch: Any) -> None:
    out = tmp_path / "deep" / "out"
    options = {"label": "topic", "tree": "lispress", "embedding": "tfidf", "base": str(tiny_base), "out": str(out)}
    words = ["evaluate", *(word for name, value in (options | files).items() for word in (f"--{name}", value))]
    done = CliRunner().invoke(app, words, catch_exceptions=False, env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert "not releasable" in done.output
    measured = json.loads((out / "evaluation.json").read_text())
    monkeypatch.setattr(api, "evaluate", lambda *_, **__: measured)  # it is printed again and not measured again
    for width in (80, 60):
        narrow = CliRunner().invoke(app, words, catch_exceptions=False, env={"COLUMNS": str(width)}).output
        assert "…" not in narrow
        for row in measured["rows"]:
            assert row["name"] in re.findall(r"[^\s│┃]+", narrow), "the name of a figure is whole"
    assert [stat.S_IMODE((out / f"evaluation.{kind}").stat().st_mode) for kind in ("json", "md")] == [0o600, 0o600]
    assert {row["group"] for row in measured["rows"]} == {"fidelity", "words", "trees", "memorisation", "downstream"}
    trees = {row["name"]: (row["synthetic"], row["reference"]) for row in measured["rows"] if row["group"] == "trees"}
    assert trees["function_recall"] == (pytest.approx(2 / 10), 1.0)
    assert trees["function_distance"][0] > trees["function_distance"][1]
    assert 0.2 < trees["tree_share"][0] < 0.5
    assert trees["tree_share"][1] == 1.0
    page = (out / "evaluation.md").read_text()
    assert all(f"| {row['name']} |" in page for row in measured["rows"])
    assert "asks number" not in done.output + page + json.dumps(measured)


def test_trees_are_named_in_real_text_and_may_be_called_parse_in_synthetic_text(files: dict[str, str]) -> None:
    config = EvaluationConfig(tree="lispress")
    texts = read_texts(files["synthetic"], "--synthetic", config)
    assert texts.trees is not None
    assert texts.take(np.array([5, 3])).trees == [texts.trees[5], texts.trees[3]] == [None, "(Find (F1))"]
    assert read_texts(files["real"], "--real", config).trees == TREES
    assert read_texts(files["real"], "--real", EvaluationConfig()).trees is None
    for option in ("--real", "--synthetic"):
        with pytest.raises(CorpusError, match=f"--tree is 'logic', which is not a column of {option}"):
            read_texts(files["real"], option, EvaluationConfig(tree="logic"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--max-texts", "3"], "'max_texts' is 3"),
        (["--seed", "-1"], "'seed' is -1"),
        (["--embedding", "./none"], "--embedding is './none': there is no such directory"),
        (["--label", "none"], "--label is 'none', which is not a column of --real"),
        (["--text", "message"], "--text is 'message', which is not a column of --real"),
    ],
)
def test_wrong_options_are_named(files: dict[str, str], options: list[str], sentence: str) -> None:
    words = ["evaluate", "--real", files["real"], "--synthetic", files["synthetic"], *options]
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, RayPrivacyError)
    assert error.exit_code == 2
    assert sentence in str(error)
    assert "asks number" not in str(error)


@pytest.mark.parametrize("missing", ["sklearn", "sacrebleu"])
def test_without_the_extra_it_says_what_to_install(files: Any, monkeypatch: Any, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    error = CliRunner().invoke(app, ["evaluate", "--real", files["real"], "--synthetic", files["synthetic"]]).exception
    assert isinstance(error, ConfigError)
    assert str(error) == f"evaluate needs {missing}: pip install 'rayprivacy[eval]'."
