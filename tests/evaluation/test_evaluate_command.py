"""`rayprivacy evaluate`: files in, a table and two files out, one sentence for bad input."""

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from timeouts import patience
from typer.testing import CliRunner

from rayprivacy.cli import app
from rayprivacy.core.errors import ConfigError, RayPrivacyError

ROWS = [f"number {row % 97} asks number {row * 7 % 89} about line {row * 13 % 83}" for row in range(120)]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    columns = {"text": ROWS, "user": [f"u{row // 3}" for row in range(120)], "topic": ["odd", "even"] * 60}
    pq.write_table(pa.table(columns), tmp_path / "real.parquet")
    pq.write_table(pa.table({"text": ROWS[::-1], "topic": columns["topic"][::-1]}), tmp_path / "synthetic.parquet")
    (tmp_path / "holdout.jsonl").write_text(
        "".join(json.dumps({"text": f"{text} today", "user": "h", "topic": "odd"}) + "\n" for text in ROWS)
    )
    return {name.stem: str(name) for name in tmp_path.iterdir()}


def test_it_prints_tables_and_writes_both_files(files: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    command = ["evaluate", "--label", "topic", "--embedding", "tfidf", "--out", str(out)]
    for name, path in files.items():
        command += [f"--{name}", path]
    done = CliRunner().invoke(app, command, catch_exceptions=False, env={"COLUMNS": "200"})
    assert done.exit_code == 0
    for word in ("precision", "copied_texts", "macro_f1", "not releasable"):
        assert word in done.output
    for width in (80, 60):
        narrow = CliRunner().invoke(app, command, catch_exceptions=False, env={"COLUMNS": str(width)}).output
        assert "…" not in narrow
        for row in json.loads((out / "evaluation.json").read_text())["rows"]:
            assert row["name"] in re.findall(r"[^\s│┃]+", narrow), "the name of a figure is whole"
    assert [stat.S_IMODE((out / f"evaluation.{kind}").stat().st_mode) for kind in ("json", "md")] == [0o600, 0o600]
    found = json.loads((out / "evaluation.json").read_text())
    assert found["releasable"] is False
    assert {row["group"] for row in found["rows"]} == {"fidelity", "words", "memorisation", "downstream"}
    page = (out / "evaluation.md").read_text()
    assert "Not releasable" in page
    for row in found["rows"]:
        assert f"| {row['name']} |" in page
    assert "asks number" not in done.output + page + json.dumps(found)


def test_a_wrong_column_is_one_sentence_and_exit_code_two(files: dict[str, str]) -> None:
    command = [
        sys.executable,
        "-c",
        "import sys; from rayprivacy.cli import main; sys.exit(main())",
        "evaluate",
        "--real",
        files["real"],
    ]
    command += ["--synthetic", files["synthetic"], "--text", "message"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"NO_COLOR": "1"}, timeout=patience(120)
    )
    assert done.returncode == 2
    assert done.stderr.startswith("rayprivacy: --text is 'message', which is not a column of --real")
    assert len(done.stderr.strip().splitlines()) == 1
    assert "asks number" not in done.stderr


@pytest.mark.parametrize("missing", ["sklearn", "sacrebleu"])
def test_without_the_extra_it_says_what_to_install(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    done = CliRunner().invoke(app, ["evaluate", "--real", files["real"], "--synthetic", files["synthetic"]])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == f"evaluate needs {missing}: pip install 'rayprivacy[eval]'."


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--max-texts", "3"], "'max_texts' is 3"),
        (["--seed", "-1"], "'seed' is -1"),
        (["--embedding", "./none"], "--embedding is './none': there is no such directory"),
        (["--label", "none"], "--label is 'none', which is not a column of --real"),
    ],
)
def test_wrong_options_are_named(files: dict[str, str], options: list[str], sentence: str) -> None:
    command = ["evaluate", "--real", files["real"], "--synthetic", files["synthetic"], *options]
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, RayPrivacyError)
    assert done.exception.exit_code == 2
    assert sentence in str(done.exception)
