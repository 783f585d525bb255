"""How far a stage has come: what is said, when, and that it is public."""

import io
import json
import re
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console
from toy_bench import SPOKEN
from toy_method import CHUNKS

import rayprivacy as rp
from rayprivacy.runs import meter
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.meter import EVERY_SECONDS, FIRST_SECONDS, Meter


class _Said:
    """A meter whose clock is set by hand, and everything it said."""

    def __init__(self):
        self.now, self.logged, console = 0.0, list[dict[str, Any]](), Console(file=io.StringIO(), width=60)
        self.meter = Meter(console, lambda stage, figures: self.logged.append(figures), lambda: self.now)

    def look(self, now):
        self.now, lines = now, list[str]()
        self.meter.look(lambda due: lines.append(self.meter.line) if due else None)
        return lines


@pytest.fixture
def said(monkeypatch):
    monkeypatch.setattr(meter, "LOOK_SECONDS", 3600.0)
    return _Said()


def test_a_quick_stage_says_nothing_and_a_long_one_a_line_every_thirty_seconds(said):
    with said.meter.stage("votes"):
        times = [now for now in range(200) if said.look(now)]
    assert times == [*range(int(FIRST_SECONDS), 200, int(EVERY_SECONDS))]
    assert [figures["so_far_s"] for figures in said.logged] == times


def test_time_left_follows_the_pace_of_the_pieces(said):
    with said.meter.stage("teachers"):
        said.meter.count("stacks_trained", 0, 20)
        assert said.look(20) == ["teachers: 0 of 20 stacks trained"], "nothing is known yet"
        said.now = 40
        said.meter.count("stacks_trained", 4, 20)
        assert said.look(50) == ["teachers: 4 of 20 stacks trained, 2 min 30 s left"]  # 10 s each, 10 s ago
        said.now = 60
        said.meter.count("teachers_trained", 250, 1000)
        assert said.look(80) == ["teachers: 250 of 1,000 teachers trained"]
        said.now = 85
        said.meter.count("stacks_trained", 2, 20)  # workers died: two stacks are done again
        assert said.look(110) == ["teachers: 2 of 20 stacks trained"]
    assert said.logged[1] == {"what": "stacks_trained", "done": 4, "total": 20, "left_s": 150}


def test_a_time_that_is_used_up_is_not_said(said):
    with said.meter.stage("teachers"):
        said.meter.count("models_trained", 0, 3)
        said.now = 10
        said.meter.count("models_trained", 2, 3)
        assert said.look(20) == ["teachers: 2 of 3 models trained"], "the third takes longer, and how long is not known"


def test_a_resumed_stage_counts_from_where_it_began(said):
    with said.meter.stage("an earlier one"):
        said.meter.count("steps_done", 5, 10)
    with said.meter.stage("DP-SGD"):
        said.meter.count("steps_done", 900, 960)
        said.now = 30.0
        said.meter.count("steps_done", 910, 960)
        assert said.look(30) == ["DP-SGD: 910 of 960 steps done, 2 min 30 s left"]


def _progress(bench, monkeypatch, out, account):
    """What a run says of counts, to run.log and to a console that is no terminal, when it says all it may."""
    monkeypatch.setattr(meter, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(meter, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(meter, "LOOK_SECONDS", 0.005)
    real = RunContext.release_histogram

    def slowly(self, *args, **named):
        meter.time.sleep(0.05)  # several looks, also where others keep the machine busy
        return real(self, *args, **named)

    monkeypatch.setattr(RunContext, "release_histogram", slowly)
    console = Console(file=io.StringIO(), width=200)
    result = rp.run(bench.load({"privacy.account": account}), bench.folder / out, console=console)
    entries = [json.loads(line) for line in (result.path / "run.log").read_text().splitlines()]
    return [entry for entry in entries if entry["event"] == "progress"], console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_private_figure_can_appear(bench, monkeypatch):
    """A run says the same of thirty users and of ten, but for seconds, and every count it says is public."""
    entries, said = _progress(bench, monkeypatch, "out", "talk")
    assert {entry["stage"] for entry in entries} >= {CHUNKS, "corpus by user"}
    keys = {key for entry in entries for key in entry}
    assert keys <= {"time", "stage", "event", "what", "done", "total", "left_s", "so_far_s"}
    plan = rp.plan(bench.load()).plan
    public = {("parts_sharded", plan.parts), *((work.what, work.total) for stage in plan.stages for work in stage.work)}
    assert {(entry["what"], entry["total"]) for entry in entries if "what" in entry} <= public
    assert all(0 <= entry["done"] <= entry["total"] for entry in entries if "what" in entry)
    assert all(entry["done"] in (0, entry["total"]) for entry in entries if entry.get("what") == "parts_sharded")
    counts = r"\d+ of \d+ (chunks done|parts sharded)(, [\d smin]+ left)?"
    line = re.compile(rf"  [\w -]+: ({counts}|[\d smin]+ so far)|  [\w -]+ +[\d.]+ s")
    lines = [each for each in said.splitlines() if each.strip() and not each.startswith("opened")]
    assert [each for each in lines if not line.fullmatch(each)] == []
    assert SPOKEN not in said
    table = pq.read_table(bench.folder / "talk.parquet")
    pq.write_table(table.slice(0, len(table) // 3), bench.folder / "talk.parquet")
    few, _ = _progress(bench, monkeypatch, "few", "others")
    assert {(entry["what"], entry["total"]) for entry in few if "what" in entry} <= public
