"""The benchmarks of two-stage generation, on files that are as small as can be: a row each, kept, and found again."""

import json
from pathlib import Path
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
PARSER = {"steps": 60, "batch": 8, "max_tokens": 24, "learning_rate": 0.01}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("xgrammar")
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return write_smcalflow(tmp_path / "data", dialogues=100)


class Runner:
    """Runs recipes in this process, on its Ray, and counts them."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.seen = [(0.0, 0.0)]  # as of `quickstart.Watch`

    def __call__(self, recipe: Path, out: Path, overrides: list[str], isa: str = "native") -> tuple[float, "Runner"]:
        self.runs.append(out.name)
        words = [word for each in overrides for word in ("-o", each)]
        done = command(["run", str(recipe), "--out", str(out), "--resume", *words], recipe.parent)
        assert done.returncode == 0, done.stderr
        return 1.0, self


def _options(values: tuple[str, ...]) -> list[str]:
    return [word for value in values for word in ("-o", value)]


@pytest.mark.parametrize("arm", ["1-stage", "2-stage"])
def test_a_row_of_the_table_is_measured_kept_and_found_again(
    data: Path, tiny_base: Path, local_ray: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, arm: str
) -> None:
    import two_stage_table as table

    runner = Runner()
    monkeypatch.setattr(table, "watched_run", runner)
    monkeypatch.setattr(table, "has_mauve", lambda: False)  # features of a large model
    words = ["--data", str(data), "--work", str(data.parent / "rows"), "--arms", arm, "--epsilon", "8", "--json"]
    few = (f"model.base={tiny_base}", "generation.texts=12", *FEW, *(TWO if arm == "2-stage" else ONE))
    words += ["--missing", "Delete", *_options(few)]
    table.main(words)
    real, public, without, row = json.loads(capsys.readouterr().out)["rows"]
    assert (public["arm"], without["arm"]) == ("public", "public, without")
    assert (real["arm"], row["arm"], row["epsilon"], row["seed"]) == ("real", arm, 8.0, 1)
    assert 0 < row["texts"] <= 12
    assert row["without"] == "Delete"
    assert public["missing"] > 0.1, "the whole public part has it"
    assert without["missing"] < public["missing"]
    assert ("missing_trees" in row) == (arm == "2-stage")
    known = pq.read_table(data.parent / "rows" / "smcalflow" / "public-without-Delete.parquet")["lispress"].to_pylist()
    assert known
    assert not any("Delete" in tree for tree in known)
    assert "public-without-Delete.parquet" in (data.parent / "rows" / f"{arm}-8-1-without-Delete.yaml").read_text()
    assert real["function_recall"] > 0.8
    assert f"model.base={tiny_base}" in row["settings"]
    assert (row["trees"] is not None) == (arm == "2-stage")
    table.main(words)
    assert json.loads(capsys.readouterr().out)["rows"] == [real, public, without, row]
    assert runner.runs == [f"{arm}-8-1-without-Delete"]


def test_a_parser_of_public_pairs_does_not_know_the_missing_function(
    data: Path, tiny_base: Path, capsys: pytest.CaptureFixture[str], one_thread: None
) -> None:
    import parser_e2e

    words = ["--data", str(data), "--work", str(data.parent / "rows"), "--missing", "Delete", "--base", str(tiny_base)]
    words += ["--json", "--parser", json.dumps(PARSER), "--arms", "public", "full"]
    parser_e2e.main(words)
    found = json.loads(capsys.readouterr().out)
    public, full = found["rows"]
    assert public["test_turns_missing"] == full["test_turns_missing"] > 2
    assert public["missing_match"] == 0
    assert full["missing_match"] > 0.3
    assert full["other_match"] > 0.2
    assert full["test_turns_other"] > 0
    split = data.parent / "rows" / "without-Delete"
    known = pq.read_table(split / "public.parquet")["lispress"].to_pylist()
    assert known
    assert not any("Delete" in tree for tree in known)
    assert pq.read_table(split / "private.parquet").column_names == ["dialogue_id", "user_utterance"]
    parser_e2e.main(words)
    assert json.loads(capsys.readouterr().out) == found


def test_synthetic_utterances_are_annotated_outside_of_the_runs(
    data: Path, tiny_base: Path, local_ray: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import parser_e2e

    runner = Runner()
    monkeypatch.setattr(parser_e2e, "watched_run", runner)
    work = data.parent / "rows"
    words = ["--data", str(data), "--work", str(work), "--missing", "Delete", "--base", str(tiny_base), "--json"]
    few = tuple(each for each in FEW if each != "model.dtype=float32")  # the base in another format: another parser
    words += ["--texts", "40", "--parser", json.dumps(PARSER), *_options(few)]
    parser_e2e.main([*words, "--arms", "1-stage", *_options(ONE)])
    capsys.readouterr()
    parser_e2e.main([*words, "--arms", "1-stage", "2-stage", *_options(TWO[:2])])
    rows = json.loads(capsys.readouterr().out)
    assert runner.runs == ["1-stage-Delete-3-1", "2-stage-Delete-3-1"]
    assert [row["arm"] for row in rows["rows"]] == ["1-stage", "2-stage"]
    for arm in ("1-stage", "2-stage"):
        (path,) = work.glob(f"annotated-{arm}-Delete-3-1-*.parquet")
        assert pq.read_schema(path).metadata[b"releasable"] == b"false"
        run = work / f"{arm}-Delete-3-1"
        assert "annotated" not in " ".join(each.name for each in run.rglob("*"))
        released = pq.read_table(run / "synthetic.parquet")
        assert "lispress" not in released.column_names
        assert pq.read_table(path)["text"].to_pylist() == released["text"].to_pylist()
    parsers = [each.name for each in (work / "2-stage-Delete-3-1" / "public").glob("parser-*") if each.is_dir()]
    assert len(parsers) == 1, "the run trains none beside the one that it is given"
    assert (work / "parsers" / parsers[0]).is_dir()
