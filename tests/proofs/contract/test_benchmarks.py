"""Every benchmark can still be started, and what is made of their results is what these say.

Runs of them, as small as can be, are in tests/methods, and are made at night alone.
"""

import json
import os
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
STARTED = [path for path in sorted(BENCHMARKS.glob("*.py")) if '__name__ == "__main__"' in path.read_text()]


@pytest.fixture
def benchmarks(monkeypatch):
    """Their folder, whose modules can be imported, and are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = {*sys.modules}
    yield BENCHMARKS
    for name in {*sys.modules} - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(BENCHMARKS)):
            del sys.modules[name]


@pytest.mark.slow
def test_every_benchmark_says_how_it_is_used(benchmarks, monkeypatch, capsys):
    """In this process: each of them imports for seconds what is here."""
    for script in STARTED:
        monkeypatch.setattr(sys, "argv", [str(script), "--help"])
        with patch.dict(os.environ), pytest.raises(SystemExit) as end:
            runpy.run_path(str(script), run_name="__main__")
        assert not end.value.code, script
        assert "usage: " in capsys.readouterr().out, script
    assert len(STARTED) > 30


def test_the_page_of_the_frontier_is_up_to_date(benchmarks):
    import frontier_page as pages

    rows = json.loads((benchmarks / "results" / "frontier.json").read_text())["rows"]
    assert rows
    assert pages.page(rows) == pages.PAGE.read_text()
    assert pages.samples(rows) == pages.SAMPLES.read_text()
    assert pages.quoted(list(pages.evidence(rows))) == json.loads(pages.PACKAGED.read_text())


@pytest.mark.exhaustive
def test_the_measured_costs_fit_the_scaling_model(benchmarks):
    import scaling_model as model

    costs: dict[str, float] = json.loads((benchmarks / "results" / "scaling.json").read_text())["costs"]
    base = model.Setting()
    found: Any = {stack: dict(model._minutes(replace(base, stack=stack), costs)) for stack in (50, 5)}
    assert found[5]["features"] == pytest.approx(found[50]["features"], rel=0.1), "pieces do not follow the stack"
    assert sum(stage.driver for stage in model.stages(base, costs)) < 0.1 * sum(found[50].values()) * 60
    documented = (benchmarks / "results" / "scaling.md").read_text()
    missing = [line for line in model.report(costs).splitlines() if line.startswith("|") and line not in documented]
    assert not missing, "benchmarks/results/scaling.md shows another simulation: run benchmarks/scaling.py --simulate"
