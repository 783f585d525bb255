"""Progress gauges: what Prometheus is told of real runs, that it is public, and that a run does without it."""

import io
import re
import time
import urllib.request
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import ray
from ray.util.metrics import Gauge
from rich.console import Console

from rayprivacy.core.files import write_atomic
from rayprivacy.core.keys import Key
from rayprivacy.dpsgd import train
from rayprivacy.methods.registry import load_recipe, method_of, parse_recipe
from rayprivacy.methods.seqpate import method as seqpate
from rayprivacy.runs import progress
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.directory import Run
from rayprivacy.runs.drive import drive
from rayprivacy.runs.progress import RATES, ProgressGauges, progress_gauges, totals

pytestmark = pytest.mark.usefixtures("local_ray")  # gauges would start a Ray of their own
OF_RAY = {"Component", "NodeAddress", "SessionName", "Version", "WorkerId"}  # the tags of every metric, beside otel_*
STEPS_OF = ("rayprivacy_progress", "steps_done")
OURS = ("ray_rayprivacy_progress", "ray_rayprivacy_rate")
Told = list[tuple[str, str, float]]
READ = {"parts_sharded": 3, "parts_encoded": 3, "sentences_written": 24, "teachers_trained": 12, "queries_voted": 40}
LEARNT = {"warm_steps_done": 5, "student_steps_done": 5, "texts_written": 8}
TOY = {"parts_sharded": 3, "chunks_done": 3}
RUNS = {"bench": TOY, "job": READ | LEARNT, "generator": {"parts_sharded": 16, "steps_done": 6, "texts_written": 12}}


@pytest.fixture
def told(monkeypatch):
    """Everything that any progress gauge is told, in order; Ray hears it too."""
    heard: Told = []

    class Hearing(Gauge):
        def set(self, value, tags=None):
            heard.append((self._name, tags["what"], value))
            super().set(value, tags)

    monkeypatch.setattr(progress, "Gauge", Hearing)
    return heard


def _run(job, account):
    recipe, console = load_recipe(job.recipe, [f"privacy.account={account}"]), Console(file=io.StringIO())
    drive(method_of(recipe), recipe, job.folder / account, resume=False, console=console, measured=False)
    return recipe.release_id


def _scraped(release, expected):
    """The tags of all gauges of a release, when these have the values that are expected, by gauge and what."""
    (node,) = ray.nodes()
    endpoint, until = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics", time.monotonic() + 30
    while True:
        with urllib.request.urlopen(endpoint, timeout=10) as page:
            rows = [row for row in page.read().decode().splitlines() if row.startswith(OURS) and release in row]
        tags = [dict(re.findall(r'(\w+)="([^"]*)"', row)) for row in rows]
        names = [(row.partition("{")[0], each["what"]) for row, each in zip(rows, tags, strict=True)]
        found = dict(zip(names, (float(row.split()[-1]) for row in rows), strict=True))
        if found == expected:
            return tags
        assert time.monotonic() < until, found
        time.sleep(0.1)


def _last(told):
    return {(gauge, what): value for gauge, what, value in told}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "which", ["bench", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("job", "generator"))]
)
def test_prometheus_sees_public_counts_of_a_run_alone(which, request, told, monkeypatch):
    monkeypatch.setattr(train, "POLL_SECONDS", 0.005)  # no step is missed
    job, counts = request.getfixturevalue(which), RUNS[which]
    release = _run(job, "talk")
    gauges = (OURS[0], f"{OURS[0]}_total")
    expected = {(gauge, what): float(count) for gauge in gauges for what, count in counts.items()}
    if "steps_done" in counts:
        expected |= {(OURS[1], what): 0.0 for what in RATES}
    for tags in _scraped(release, expected):
        assert {tag for tag in tags if not tag.startswith("otel_scope_")} - OF_RAY == {"release", "what"}
        assert tags["release"] == release
    first = _last(told)
    if "steps_done" in counts:  # before the first of them, when the workers can begin it
        assert next(value for *name, value in told if name == [*STEPS_OF]) == 0
    told.clear()
    # Three users of thirty, and empty shards: whoever watches the gauges sees the same.
    table = pq.read_table(job.folder / "talk.parquet")
    pq.write_table(table.slice(0, len(table) // 10), job.folder / "talk.parquet")
    assert _run(job, "others") == release
    assert _last(told) == first


def _counted(tmp_path):
    """The stage of SeqPATE that trains 7 teachers, 3 in a piece, out of order; the last piece has one."""
    recipe = parse_recipe({"method": "seqpate", "teachers": {"count": 7, "stack": 3}})
    plan = method_of(recipe).planned(recipe)
    run = Run.open(tmp_path / "run", recipe, resume=False, console=Console(file=io.StringIO()))
    pool: Any = SimpleNamespace(train=lambda: (range(6, 7), range(3), range(3, 6)))
    unused: Any = None
    seqpate._train(RunContext(run, plan, unused, Key.for_tests(), ProgressGauges("a-release", totals(plan))), pool)


def test_teachers_are_counted_as_they_finish(told, tmp_path):
    _counted(tmp_path)
    assert [value for *name, value in told if name == ["rayprivacy_progress", "teachers_trained"]] == [0, 1, 4, 7]


def test_the_start_of_the_workers_is_no_time_of_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "POLL_SECONDS", 0.01)
    written, said = tmp_path / "progress", list[int]()
    with train._following(written, said.append):
        time.sleep(0.1)
        assert said == []
        write_atomic(written, b"4")
        while not said:
            time.sleep(0.01)
        write_atomic(written, b"6")
    assert (said[0], said[-1], {*said}) == (4, 6, {4, 6})


def test_each_training_of_a_run_has_a_total_of_its_own(told):
    gauges = ProgressGauges("a-release", {"steps_done": 80}, lambda: 0.0)
    for total in (20, 80):
        gauges.steps(1.0, total)(20)
        last = _last(told)
        assert (last[STEPS_OF], last["rayprivacy_progress_total", "steps_done"]) == (20, total)


def test_the_rate_counts_steps_and_nominal_tokens(told):
    now = 0.0
    tell = ProgressGauges("a-release", {"steps_done": 1000}, lambda: now).steps(10 * 12)

    def after(seconds, done):
        nonlocal now
        now += seconds
        tell(done)
        last = _last(told)
        assert last[STEPS_OF] == done
        assert last["rayprivacy_rate", "tokens_per_second"] == last["rayprivacy_rate", "steps_per_second"] * 120
        return last["rayprivacy_rate", "steps_per_second"]

    assert after(0, 50) == after(20, 50) == 0, "a resumed run that only starts"
    assert after(3, 51) == 0, "how long the first step took is not known"
    assert after(2, 55) == 2
    assert after(2, 55) == 1
    assert after(1, 50) == after(9, 50) == after(5, 51) == 0, "workers died: steps are done again"
    assert after(10, 61) == 1
    assert [after(10, 61 + 5 * n) for n in range(1, 9)][-1] == 0.5, "the last minute counts"
    assert after(1, 1000) == 0, "nothing runs any more"


def test_a_run_goes_on_when_metrics_fail(monkeypatch, tmp_path):
    def fails(*_, **__):
        raise OSError("no Ray, or no metrics agent")

    monkeypatch.setattr(Gauge, "set", fails)
    _counted(tmp_path)
    monkeypatch.setattr(progress, "Gauge", fails)
    ProgressGauges("a-release", {"steps_done": 9}).steps(1.0)(3)


def test_figures_are_said_again_until_the_run_ends(told, monkeypatch):
    monkeypatch.setattr(progress, "REPEAT_SECONDS", 0.01)
    with progress_gauges("a-release", {"queries_voted": 4}) as gauges:
        gauges.show("queries_voted", 3)
        until = time.monotonic() + 10
        while len(told) < 20 and time.monotonic() < until:
            time.sleep(0.01)
    said, what = len(told), "queries_voted"
    assert _last(told) == {("rayprivacy_progress", what): 3, ("rayprivacy_progress_total", what): 4}
    time.sleep(0.1)
    assert len(told) == said >= 20


def test_only_what_the_plan_counts_can_be_shown_and_a_quiet_run_is_not_seen(told):
    """Such are trials of a selection: their number is secret."""
    gauges = ProgressGauges("a-release", {"steps_done": 2}, shown=False)
    gauges.show("steps_done", 1)
    assert told == []
    with pytest.raises(KeyError):
        gauges.show("users", 0)
