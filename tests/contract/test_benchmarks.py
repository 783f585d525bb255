"""Every benchmark can still be started, and what is made of their results is what these say.

Runs of them, as small as can be, are in tests/methods, and are made at night alone.
"""

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from timeouts import patience

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
STARTED = [path for path in sorted(BENCHMARKS.glob("*.py")) if "ArgumentParser" in path.read_text()]
HELP = """
import contextlib, io, runpy, sys
sys.path.insert(0, sys.argv[1])
for script in sys.argv[2:]:
    sys.argv, shown = [script, "--help"], io.StringIO()
    try:
        with contextlib.redirect_stdout(shown):
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        assert not end.code, script
    assert "usage: " in shown.getvalue(), script
"""


@pytest.mark.slow
def test_every_benchmark_says_how_it_is_used() -> None:
    """In one process: each of them imports for seconds."""
    command = [sys.executable, "-c", HELP, str(BENCHMARKS), *map(str, STARTED)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(200), check=False)
    assert done.returncode == 0, done.stderr
    assert len(STARTED) > 30


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return BENCHMARKS


def test_the_page_of_the_frontier_is_up_to_date(benchmarks: Path) -> None:
    import frontier_page as pages

    rows = json.loads((benchmarks / "results" / "frontier.json").read_text())["rows"]
    assert rows
    assert pages.page(rows) == pages.PAGE.read_text()
    assert pages.samples(rows) == pages.SAMPLES.read_text()
    assert pages.quoted(list(pages.evidence(rows))) == json.loads(pages.PACKAGED.read_text())


@pytest.mark.exhaustive
def test_the_plot_of_the_frontier_is_the_same_for_the_same_rows(benchmarks: Path, tmp_path: Path) -> None:
    import frontier_page as pages

    rows = json.loads((benchmarks / "results" / "frontier.json").read_text())["rows"]
    for name in ("one", "other"):
        pages.draw(rows, tmp_path / f"{name}.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()


@pytest.mark.exhaustive
def test_a_death_of_the_scaling_model_costs_the_pieces_of_its_node_and_the_repair(benchmarks: Path) -> None:
    import scaling_model as model

    setting = model.Setting(nodes=1, straggling=0.0, mtbf_days=1000 / 86400, repair=50.0)
    once = 0
    for seed in range(20):
        fate = random.Random(seed).expovariate(1 / 1000)
        length = fate * 0.75  # the second piece is under way when the node dies
        found = model._seconds(model.Stage("", (length, length), 1), setting, random.Random(seed))
        expected = fate + 50.0 + length
        assert found > expected - 1e-6, "the first piece is kept, and the second one starts again after the repair"
        once += found == pytest.approx(expected)
    assert 0 < once < 20, "sometimes it dies again"


@pytest.mark.exhaustive
def test_the_measured_costs_fit_the_scaling_model(benchmarks: Path) -> None:
    import scaling_model as model

    costs: dict[str, float] = json.loads((benchmarks / "results" / "scaling.json").read_text())["costs"]
    base = model.Setting()
    found: Any = {stack: dict(model._minutes(replace(base, stack=stack), costs)) for stack in (50, 5)}
    assert found[5]["features"] == pytest.approx(found[50]["features"], rel=0.1), "pieces do not follow the stack"
    assert sum(stage.driver for stage in model.stages(base, costs)) < 0.1 * sum(found[50].values()) * 60
    documented = (benchmarks / "results" / "scaling.md").read_text()
    missing = [line for line in model.report(costs).splitlines() if line.startswith("|") and line not in documented]
    assert not missing, "benchmarks/results/scaling.md shows another simulation: run benchmarks/scaling.py --simulate"
