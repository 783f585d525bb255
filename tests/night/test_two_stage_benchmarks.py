"""The benchmarks of two-stage generation, on files that are as small as can be: a row each, kept, and found again."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from commands import command
from small_smcalflow import write_smcalflow

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(600)]
FEW = (
    *("pretrain.steps=30", "pretrain.batch=4", "pretrain.learning_rate=0.003", "training.sampling_rate=0.3"),
    *("training.expected_batch=12", "training.chunk=4", "adapter.layers=2", "evaluation.users=4"),
    *("resources.cpus=1", "resources.actors=1", "model.dtype=float32"),
)
TWO = ("stages.trees.steps=4", "stages.utterances.steps=4", "parses.max_tokens=96")
ONE = ("training.steps=4",)
Rows = Callable[..., Any]
PARSER = {"steps": 240, "batch": 8, "max_tokens": 24, "learning_rate": 0.02}


def _options(values):
    return [word for value in values for word in ("-o", value)]


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder for rows, beside the data."""
    pytest.importorskip("xgrammar")
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    write_smcalflow(tmp_path / "data", dialogues=100)
    return tmp_path / "rows"


@pytest.fixture
def rows(work, capsys):
    """What a benchmark prints, without the public trees that have one function."""

    def rows(benchmark, *words):
        places = ["--data", str(work.parent / "data"), "--work", str(work), "--missing", "Delete", "--json"]
        benchmark([*places, *words])
        return json.loads(capsys.readouterr().out)["rows"]

    return rows


@pytest.fixture
def runs(work, local_ray, monkeypatch):
    """The folders of the recipes that were run: in this process, on its Ray."""
    import parser_e2e
    import two_stage_table

    names, watch = list[str](), SimpleNamespace(seen=[(0.0, 0.0)])  # as of `quickstart.Watch`

    def run(recipe, out, overrides, isa="native"):
        names.append(out.name)
        done = command(["run", str(recipe), "--out", str(out), "--resume", *_options(overrides)], recipe.parent)
        assert done.returncode == 0, done.stderr
        return 1.0, watch

    for module in (two_stage_table, parser_e2e):
        monkeypatch.setattr(module, "watched_run", run)
    monkeypatch.setattr(two_stage_table, "has_mauve", lambda: False)  # features of a large model
    return names


def _without_the_function(path):
    trees = pq.read_table(path)["lispress"].to_pylist()
    return bool(trees) and not any("Delete" in tree for tree in trees)


@pytest.mark.parametrize("arm", ["1-stage", "2-stage"])
def test_a_row_is_kept_and_found_again(work, tiny_base, rows, runs, arm):
    from two_stage_table import main

    few = (f"model.base={tiny_base}", "generation.texts=12", *FEW, *(TWO if arm == "2-stage" else ONE))
    words = ["--arms", arm, "--epsilon", "8", *_options(few)]
    real, public, without, row = found = rows(main, *words)
    assert rows(main, *words) == found
    assert runs == [f"{arm}-8-1-without-Delete"]
    assert [each["arm"] for each in found] == ["real", "public", "public, without", arm]
    assert (row["epsilon"], row["seed"], row["without"]) == (8.0, 1, "Delete")
    assert 0 < row["texts"] <= 12
    assert public["missing"] > max(0.1, without["missing"]), "the whole public part has it"
    assert ("missing_trees" in row) == (row["trees"] is not None) == (arm == "2-stage")
    assert _without_the_function(work / "smcalflow" / "public-without-Delete.parquet")
    assert "public-without-Delete.parquet" in (work / f"{runs[0]}.yaml").read_text()
    assert real["function_recall"] > 0.8
    assert f"model.base={tiny_base}" in row["settings"]


def test_public_pairs_teach_no_missing_function(work, tiny_base, rows, one_thread):
    from parser_e2e import main

    words = ["--base", str(tiny_base), "--parser", json.dumps(PARSER), "--arms", "public", "full"]
    public, full = found = rows(main, *words)
    assert rows(main, *words) == found
    assert public["test_turns_missing"] == full["test_turns_missing"] > 2
    assert public["missing_match"] == 0
    assert full["missing_match"] > 0.3
    assert full["other_match"] > 0.2
    assert full["test_turns_other"] > 0
    assert _without_the_function(work / "without-Delete" / "public.parquet")
    assert pq.read_schema(work / "without-Delete" / "private.parquet").names == ["dialogue_id", "user_utterance"]


def test_annotations_lie_outside_of_the_runs(work, tiny_base, rows, runs):
    from parser_e2e import main

    few = [each for each in FEW if each != "model.dtype=float32"]  # the base in another format: another parser
    words = ["--base", str(tiny_base), "--texts", "40", "--parser", json.dumps(PARSER), *_options(few)]
    rows(main, *words, "--arms", "1-stage", *_options(ONE))
    found = rows(main, *words, "--arms", "1-stage", "2-stage", *_options(TWO[:2]))
    assert runs == ["1-stage-Delete-3-1", "2-stage-Delete-3-1"]
    assert [row["arm"] for row in found] == ["1-stage", "2-stage"]
    for name in runs:
        (path,) = work.glob(f"annotated-{name}-*.parquet")
        assert pq.read_schema(path).metadata[b"releasable"] == b"false"
        assert "annotated" not in " ".join(each.name for each in (work / name).rglob("*"))
        released = pq.read_table(work / name / "synthetic.parquet")
        assert "lispress" not in released.column_names
        assert pq.read_table(path)["text"].to_pylist() == released["text"].to_pylist()
    (parser,) = (each for each in (work / runs[1] / "public").glob("parser-*") if each.is_dir())
    assert (work / "parsers" / parser.name).is_dir(), "the run trains none beside the one that it is given"
