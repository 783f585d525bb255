"""Searches without a charge, on a real Ray: the same trials one by one and side by side, killed, resumed and pruned."""

import json
import shlex
import signal

import pyarrow.parquet as pq
import pytest
import yaml
from commands import command
from question_sets import write_set, write_space
from small_jobs import on_this_ray, run_command

from rayprivacy.questions.settings import parse_questions
from rayprivacy.runs.files import overridden

pytest.importorskip("bm25s")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("local_ray")]
KILL = """
from rayprivacy.tuning.search import RecipeSearch
real, ended = RecipeSearch.on_trial_complete, []
def dying(*given, **more):
    real(*given, **more)
    ended.append(1)
    if len(ended) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
RecipeSearch.on_trial_complete = dying
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_base):
    """A folder with a set of questions, and how it was searched: one trial after the other."""
    folder = tmp_path_factory.mktemp("free")
    write_set(folder, tiny_base)
    done = tuned(folder, "one")
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def tuned(folder, out, *words):
    return command(["tune", str(write_space(folder)), "--out", out, *words], folder)


def trials(folder, out):
    return pq.read_table(folder / out / "trials.parquet").to_pylist()


def test_the_best_trial_is_told_with_its_interval_its_luck_and_its_command(place):
    folder, said = place
    rows = trials(folder, "one")
    assert [row["state"] for row in rows] == ["finished"] * 3
    assert [(row["epsilon"], row["charges"], row["share"]) for row in rows] == [(None, 0, None)] * 3
    best = max(rows, key=lambda row: row["utility"])
    written = (folder / "one" / "best.yaml").read_text()
    for line in (line.removeprefix("# ") for line in written.splitlines() if line.startswith("#")):
        assert line in said
    assert f"annotated_accuracy {best['utility']:.3f} (" in written
    assert "chosen among 3 trials" in written
    words = shlex.split(next(line for line in said.splitlines() if line.startswith("rayprivacy questions")))
    named = ["rayprivacy", "questions", "--public", "pages.parquet", "--text", "text", "--out", "set"]
    assert words[: len(named)] == named
    values = json.loads(best["values"])
    by_command = parse_questions(overridden({}, words[len(named) + 1 :: 2]))
    assert by_command == parse_questions(yaml.safe_load(written))
    assert (by_command.keep.share, by_command.keep.by) == (values["questions.keep.share"], "value")
    assert sorted(path.name for path in (folder / "one").glob("*.*")) == [
        *("best.yaml", "space.json", "study.journal", "trials.parquet")
    ]


@pytest.mark.exhaustive
def test_trials_side_by_side_find_the_same(place):
    folder, _ = place
    assert tuned(folder, "two", "-o", "concurrent=2").returncode == 0
    assert trials(folder, "two") == trials(folder, "one")
    assert (folder / "two" / "best.yaml").read_text() == (folder / "one" / "best.yaml").read_text()


def test_a_killed_search_goes_on_and_one_of_other_questions_does_not(place):
    folder, _ = place
    words = ["tune", str(write_space(folder)), "--out", "killed"]
    killed = run_command(words, folder, on_this_ray() + KILL)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (folder / "killed" / "best.yaml").exists()
    done = command([*words, "--resume"], folder)
    assert done.returncode == 0, done.stderr
    rows = trials(folder, "killed")
    assert [row["state"] for row in rows] == ["finished"] * 3
    assert rows[:2] == trials(folder, "one")[:2]
    for path in (folder / "set" / "questions.parquet", folder / "annotations.parquet", folder / "pairs.parquet"):
        table = pq.read_table(path)
        pq.write_table(table.slice(1), path)
        again = command([*words, "--resume", "-o", "trials=4"], folder)
        pq.write_table(table, path)
        assert again.returncode == 2
        assert "holds a search of another space" in again.stderr


@pytest.mark.exhaustive
def test_a_trial_that_falls_behind_is_pruned_after_an_estimator(place):
    folder, _ = place
    pruned = ["-o", "pruning={grace: 1, reduction: 2}", "-o", "trials=4"]
    assert tuned(folder, "pruned", *pruned).returncode == 0
    rows = trials(folder, "pruned")
    assert {row["state"] for row in rows} == {"finished", "pruned"}
    whole = {row["values"]: row["utility"] for row in trials(folder, "one")}
    for row in rows:
        if row["state"] == "finished" and row["values"] in whole:
            assert row["utility"] == whole[row["values"]]
