"""The benchmarks of two-stage generation, on files that are as small as can be: a row each, kept, and found again."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from commands import command
from small_smcalflow import write_smcalflow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
FEW = (
    "pretrain.steps=30",
    "pretrain.batch=4",
    "pretrain.learning_rate=0.003",
    "training.sampling_rate=0.3",
    "training.expected_batch=12",
    "training.chunk=4",
    "adapter.layers=2",
    "evaluation.users=4",
    "resources.cpus=1",
    "resources.actors=1",
    "model.dtype=float32",
)
TWO = ("stages.trees.steps=4", "stages.utterances.steps=4", "parses.max_tokens=96")
ONE = ("training.steps=4",)
PARSER = {"steps": 60, "batch": 8, "max_tokens": 24, "learning_rate": 0.003, "adapter": {"kind": "full"}}


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


@pytest.mark.parametrize("arm", ["1-stage", pytest.param("2-stage", marks=pytest.mark.exhaustive)])
def test_a_row_of_the_table_is_measured_kept_and_found_again(
    data: Path,
    tiny_base: Path,
    local_ray: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arm: str,
) -> None:
    import two_stage_table as table

    runner = Runner()
    monkeypatch.setattr(table, "watched_run", runner)
    monkeypatch.setattr(table, "has_mauve", lambda: False)  # features of a large model
    words = ["--data", str(data), "--work", str(data.parent / "rows"), "--arms", arm, "--epsilon", "8", "--json"]
    words += [
        "--missing",
        "Delete",
        *_options((f"model.base={tiny_base}", "generation.texts=12", *FEW, *(TWO if arm == "2-stage" else ONE))),
    ]
    table.main(words)
    real, public, without, row = json.loads(capsys.readouterr().out)["rows"]
    assert (public["arm"], without["arm"]) == ("public", "public, without")
    assert (real["arm"], row["arm"], row["epsilon"], row["seed"]) == ("real", arm, 8.0, 1)
    assert 0 < row["texts"] <= 12
    assert row["without"] == "Delete"
    assert public["missing"] > 0.1, "the whole public part has it"
    assert without["missing"] < public["missing"]
    assert ("missing_trees" in row) == (arm == "2-stage")
    assert 0 <= row["missing"] <= 1
    known = pq.read_table(data.parent / "rows" / "smcalflow" / "public-without-Delete.parquet")["lispress"].to_pylist()
    assert known
    assert not any("Delete" in tree for tree in known)
    assert "public-without-Delete.parquet" in (data.parent / "rows" / f"{arm}-8-1-without-Delete.yaml").read_text()
    for name in ("words", "function_recall", "function_distance", "top_25"):
        assert 0 <= row[name] <= 1, name
    assert real["function_recall"] > 0.8
    assert row["real"]["texts"] == row["texts"] < real["texts"]
    assert row["real"]["function_recall"] <= real["function_recall"]
    assert f"model.base={tiny_base}" in row["settings"]
    assert row["paper"]["function_recall"] == {"1-stage": 0.487, "2-stage": 0.707}[arm]
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
    assert found["claims"] == {"public at most 1%": True}
    split = data.parent / "rows" / "without-Delete"
    known = pq.read_table(split / "public.parquet")["lispress"].to_pylist()
    assert known
    assert not any("Delete" in tree for tree in known)
    assert pq.read_table(split / "private.parquet").column_names == ["dialogue_id", "user_utterance"]
    parser_e2e.main(words)
    assert json.loads(capsys.readouterr().out) == found


@pytest.mark.exhaustive
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


def test_claims_of_the_table_are_about_means_over_seeds(data: Path) -> None:
    import two_stage_claims as table

    def row(arm: str, seed: int, functions: float, **more: float) -> dict[str, Any]:
        figures = {"function_recall": functions, "function_distance": 0.5 - functions / 2} | more
        return {"arm": arm, "epsilon": 8.0, "seed": seed} | figures

    rows = [row("1-stage", 1, 0.5), row("1-stage", 2, 0.7), row("2-stage", 1, 0.64), row("2-stage", 2, 0.68)]
    rows.append({"arm": "real", "epsilon": None, "seed": 0, "function_recall": 0.9})
    assert table.claims(rows) == {
        "2-stage has 0.05 more functions than 1-stage at 8": True,
        "2-stage is nearer in functions than 1-stage at 8": True,
    }
    rows[3]["function_recall"] = 0.64
    assert not table.claims(rows)["2-stage has 0.05 more functions than 1-stage at 8"]
    half = [row("1.5-stage", 1, 0.9)]
    assert not table.claims(rows + half)["1.5-stage is between them in functions at 8"]
    assert table.paper_of("2-stage, as published", 3.0)["function_distance"] == 0.054
    assert table.paper_of("1.5-stage", 3.0) is None


def test_claims_are_made_of_the_arms_that_are_there(data: Path) -> None:
    import parser_e2e

    def claims(**match: float) -> dict[str, Any]:
        return parser_e2e.claims([{"arm": arm, "missing_match": value} for arm, value in match.items()])

    assert claims(**{"1-stage": 0.02, "2-stage": 0.03, "public": 0.0}) == {
        "public at most 1%": True,
        "1-stage above public": True,
        "2-stage 2 points above 1-stage": False,
    }
    assert claims(public=0.02) == {"public at most 1%": False}
