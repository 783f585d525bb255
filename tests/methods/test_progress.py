"""Progress gauges: what Prometheus is told of real runs, that it is public, and that a run does without it."""

import io
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import ray
from ray.util.metrics import Gauge
from rich.console import Console

from rayprivacy.core.files import write_atomic
from rayprivacy.core.keys import Key
from rayprivacy.dpsgd import train
from rayprivacy.dpsgd.settings import DpSgdConfig
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
RUNS = {
    "job": {
        "parts_sharded": 3,
        "sentences_written": 24,
        "warm_steps_done": 5,
        "parts_encoded": 3,
        "teachers_trained": 12,
        "queries_voted": 40,
        "student_steps_done": 5,
        "texts_written": 8,
    },
    "generator": {"parts_sharded": 16, "steps_done": 6, "texts_written": 12},
}


class RecordingGauge(Gauge):
    """Ray's gauge, which also remembers what it was told."""

    told: list[tuple[str, str, float]]

    def set(self, value: float | None, tags: dict[str, str] | None = None) -> None:
        assert value is not None
        assert tags is not None
        self.told.append((self._name, tags["what"], value))
        super().set(value, tags)


class BrokenGauge(Gauge):
    """Fails whenever it is told something."""

    def set(self, value: float | None, tags: dict[str, str] | None = None) -> None:
        raise RuntimeError("the metrics agent is gone")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, float]]:
    """Everything that any progress gauge is told, in order."""
    RecordingGauge.told = []
    monkeypatch.setattr(progress, "Gauge", RecordingGauge)
    return RecordingGauge.told


def _run(job: Any, out: str, account: str) -> str:
    recipe = load_recipe(job.recipe, [f"privacy.account={account}"])
    console = Console(file=io.StringIO())
    drive(method_of(recipe), recipe, job.folder / out, resume=False, console=console, measured=False)
    return recipe.release_id


def _scraped(release: str) -> dict[tuple[str, str], tuple[dict[str, str], float]]:
    """Tags and value by (gauge, what) of one release."""
    (node,) = ray.nodes()
    endpoint = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    with urllib.request.urlopen(endpoint, timeout=10) as page:
        rows = [row for row in page.read().decode().splitlines() if row.startswith(OURS) and release in row]
    found = {}
    for row in rows:
        tags = dict(re.findall(r'(\w+)="([^"]*)"', row))
        found[row.partition("{")[0], tags["what"]] = tags, float(row.split()[-1])
    return found


def _wait(release: str, expected: dict[tuple[str, str], float]) -> dict[tuple[str, str], tuple[dict[str, str], float]]:
    until = time.monotonic() + 30
    while True:
        found = _scraped(release)
        if {name: value for name, (_, value) in found.items()} == expected:
            return found
        assert time.monotonic() < until, found
        time.sleep(0.5)


def _last(told: list[tuple[str, str, float]]) -> dict[tuple[str, str], float]:
    """The last value of every gauge."""
    return {(gauge, what): value for gauge, what, value in told}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("which", ["job", pytest.param("generator", marks=pytest.mark.exhaustive)])
def test_prometheus_sees_public_counts_of_a_run_and_nothing_else(
    which: str, request: pytest.FixtureRequest, told: list[tuple[str, str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "POLL_SECONDS", 0.005)  # no step is missed
    job, counts = request.getfixturevalue(which), RUNS[which]
    release = _run(job, "out", "talk")
    gauges = ("ray_rayprivacy_progress", "ray_rayprivacy_progress_total")
    expected = {(gauge, what): float(count) for gauge in gauges for what, count in counts.items()}
    if "steps_done" in counts:
        expected |= {("ray_rayprivacy_rate", what): 0.0 for what in RATES}
    for tags, _ in _wait(release, expected).values():
        assert {tag for tag in tags if not tag.startswith("otel_scope_")} - OF_RAY == {"release", "what"}
        assert tags["release"] == release
    first = _last(told)
    if "steps_done" in counts:  # before the first of them, when the workers can begin it
        assert next(value for gauge, what, value in told if (gauge, what) == STEPS_OF) == 0
    told.clear()
    # Three users of thirty, and empty shards: whoever watches the gauges sees the same.
    table = pq.read_table(job.folder / "talk.parquet")
    pq.write_table(table.slice(0, len(table) // 10), job.folder / "talk.parquet")
    assert _run(job, "few", "others") == release
    assert _last(told) == first


class _Pool:
    """Pieces of an ensemble that finish out of order."""

    def train(self) -> Iterator[range]:
        yield from (range(6, 7), range(3), range(3, 6))


def _counted(tmp_path: Path) -> None:
    """The stage of SeqPATE that trains 7 teachers, 3 in a piece; the last piece has one."""
    recipe = parse_recipe({"method": "seqpate", "teachers": {"count": 7, "stack": 3}})
    plan = method_of(recipe).planned(recipe)
    run = Run.open(tmp_path / "run", recipe, resume=False, console=Console(file=io.StringIO()))
    gauges = ProgressGauges("a-release", totals(plan))
    unused: Any = None
    seqpate._train(RunContext(run, plan, unused, Key.for_tests(), gauges), _Pool())  # type: ignore[arg-type]


def test_teachers_are_counted_as_they_finish(told: list[tuple[str, str, float]], tmp_path: Path) -> None:
    _counted(tmp_path)
    assert [value for gauge, what, value in told if (gauge, what) == ("rayprivacy_progress", "teachers_trained")] == [
        0, 1, 4, 7,
    ]  # fmt: skip
    assert _last(told)["rayprivacy_progress_total", "teachers_trained"] == 7


def test_the_start_of_the_workers_is_no_time_of_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_each_training_of_a_run_has_a_total_of_its_own(told: list[tuple[str, str, float]]) -> None:
    gauges = ProgressGauges("a-release", {"steps_done": 80}, lambda: 0.0)
    for total in (20, 80):
        gauges.steps(1.0, total)(20)
        last = _last(told)
        assert last["rayprivacy_progress_total", "steps_done"] == total
        assert last["rayprivacy_progress", "steps_done"] == 20


def test_the_rate_counts_steps_and_nominal_tokens(told: list[tuple[str, str, float]]) -> None:
    now = 0.0
    training = DpSgdConfig(steps=1000, expected_batch=10, max_tokens=12)
    nominal = training.expected_batch * training.max_tokens
    tell = ProgressGauges("a-release", {"steps_done": 1000}, lambda: now).steps(nominal)

    def after(seconds: float, done: int) -> float:
        nonlocal now
        now += seconds
        tell(done)
        last = _last(told)
        assert last["rayprivacy_progress", "steps_done"] == done
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


def test_a_run_goes_on_when_metrics_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(progress, "Gauge", BrokenGauge)
    _counted(tmp_path)

    def no_gauge(*_: Any) -> Any:
        raise OSError("no Ray")

    monkeypatch.setattr(progress, "Gauge", no_gauge)
    ProgressGauges("a-release", {"steps_done": 9}).steps(1.0)(3)


def test_figures_are_said_again_until_the_run_ends(
    told: list[tuple[str, str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "REPEAT_SECONDS", 0.01)
    with progress_gauges("a-release", {"queries_voted": 4}) as gauges:
        gauges.show("queries_voted", 3)
        until = time.monotonic() + 10
        while len(told) < 20 and time.monotonic() < until:
            time.sleep(0.01)
    assert len(told) >= 20
    assert _last(told) == {
        ("rayprivacy_progress", "queries_voted"): 3,
        ("rayprivacy_progress_total", "queries_voted"): 4,
    }
    said = len(told)
    time.sleep(0.1)
    assert len(told) == said


def test_only_what_the_plan_counts_can_be_shown() -> None:
    gauges = ProgressGauges("a-release", {"steps_done": 2})
    gauges.show("steps_done", 1)
    with pytest.raises(KeyError):
        gauges.show("users", 0)


def test_a_quiet_run_is_not_seen(told: list[tuple[str, str, float]]) -> None:
    """Trials of a selection: their number is secret."""
    ProgressGauges("a-release", {"steps_done": 2}, shown=False).show("steps_done", 1)
    assert told == []
