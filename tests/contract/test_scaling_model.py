"""The simulation behind benchmarks/results/scaling.md: its arithmetic, and that the measured costs still fit it."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NEVER = 1e12  # days


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import scaling_model

    return scaling_model


@pytest.fixture
def costs() -> dict[str, float]:
    return dict(json.loads((BENCHMARKS / "results" / "scaling.json").read_text())["costs"])


@pytest.mark.parametrize(("pieces", "slots", "rounds"), [(10, 4, 3), (8, 4, 2), (3, 4, 1)])
def test_without_misfortune_pieces_run_in_rounds(model: Any, pieces: int, slots: int, rounds: int) -> None:
    setting = model.Setting(nodes=2, straggling=0.0, mtbf_days=NEVER)
    stage = model.Stage("", (5.0,) * pieces, slots, fixed=7.0)
    assert model._seconds(stage, setting, random.Random(0)) == pytest.approx(5.0 * rounds + 7.0)


def test_a_death_costs_the_pieces_of_its_node_and_the_repair(model: Any) -> None:
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


def test_straggling_keeps_the_mean_and_makes_the_last_piece_late(model: Any) -> None:
    calm, rough = (model.Setting(nodes=4, straggling=spread, mtbf_days=NEVER) for spread in (0.0, 0.5))
    alone = model.Stage("", (1.0,) * 4000, 1)
    assert model._seconds(alone, rough, random.Random(1)) == pytest.approx(4000, rel=0.05)
    spread_out = model.Stage("", (1.0,) * 4000, 4000)
    assert model._seconds(spread_out, calm, random.Random(1)) == 1.0
    assert model._seconds(spread_out, rough, random.Random(1)) > 3.0


def test_the_measured_costs_fit_the_model(model: Any, costs: dict[str, float]) -> None:
    base = model.Setting()
    found = {stack: dict(model._minutes(replace(base, stack=stack), costs)) for stack in (50, 5)}
    assert all(math.isfinite(minutes) and minutes >= 0 for column in found.values() for minutes in column.values())
    assert found[5]["features"] == pytest.approx(found[50]["features"], rel=0.1), "pieces do not follow the stack"
    driver = sum(stage.driver for stage in model.stages(base, costs))
    assert driver < 0.1 * sum(found[50].values()) * 60
    twice = replace(base, records=2 * base.records, users=2 * base.users)
    assert model._files(twice, costs) > 1.8 * model._files(base, costs), "files follow the rows, and so does the work"
    text = model.report(costs)
    assert all(name in text for name in found[5])
    documented = (BENCHMARKS / "results" / "scaling.md").read_text()
    missing = [line for line in text.splitlines() if line.startswith("|") and line not in documented]
    assert not missing, "benchmarks/results/scaling.md shows another simulation: run benchmarks/scaling.py --simulate"
