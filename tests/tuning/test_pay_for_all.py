"""Every trial pays, chunk by chunk: charges are the chunks that ran, and the cap is never passed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from rayprivacy.core.errors import BudgetRefusedError, ConfigError
from rayprivacy.methods.registry import load_recipe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
RATES = {"training.optimizer.learning_rate": {"loguniform": [1e-7, 10.0]}}


@pytest.mark.exhaustive
def test_charges_are_the_chunks_that_ran(bench: Any, local_ray: Path) -> None:
    outcome = bench.search(bench.space(trials=2, concurrent=2))
    assert [row.state for row in outcome.rows] == ["finished"] * 2
    charges = bench.charges()
    assert len(charges) == sum(row.charges for row in outcome.rows) == 2 * 2
    assert {state for *_, state in charges} == {"committed"}
    assert outcome.best.utility == min(row.utility for row in outcome.rows)
    assert outcome.spent == pytest.approx(sum(row.share for row in outcome.rows), rel=1e-6)
    bench.ledger.verify()
    table = pq.read_table(bench.folder / "out" / "trials.parquet")
    assert table["release_id"].to_pylist() == [row.release_id for row in outcome.rows]
    assert (bench.folder / "out" / "frontier.png").stat().st_size > 5_000
    best = load_recipe(bench.folder / "out" / "best.yaml")
    assert best.release_id == outcome.best.release_id  # running it is the same release, and costs nothing
    assert yaml.safe_load((bench.folder / "out" / "best.yaml").read_text())["privacy"]["account"] == "search"

    with pytest.raises(ConfigError, match="--resume"):
        bench.search(bench.space(trials=2, concurrent=2))
    again = bench.search(bench.space(trials=3, concurrent=2), resume=True)
    assert [row.values for row in again.rows[:2]] == [row.values for row in outcome.rows]
    assert len(bench.charges()) == 3 * 2
    with pytest.raises(ConfigError, match="another space"):
        bench.search(bench.space(search=RATES), resume=True)


def test_an_account_too_small_for_one_trial_is_a_refusal(bench: Any, local_ray: Path) -> None:
    budget = {"account": "search", "epsilon": 1.9, "delta": 1e-6}  # a trial takes 2.0
    with pytest.raises(BudgetRefusedError, match=r"no trial ran.*raise budget\.epsilon"):
        bench.search(bench.space(trials=2, budget=budget))
    assert bench.charges() == []


@pytest.mark.exhaustive
def test_a_pruned_trial_pays_for_what_it_ran(bench: Any, local_ray: Path) -> None:
    pruning, budget = {"grace": 1, "reduction": 2}, {"account": "search", "epsilon": 30.0}
    space = bench.space(search=RATES, trials=4, searcher="random", pruning=pruning, budget=budget, seed=3)
    outcome = bench.search(space)
    states = [row.state for row in outcome.rows]
    assert set(states) == {"finished", "pruned"}
    for row in outcome.rows:
        assert (row.charges, row.planned) == ((2, 2) if row.state == "finished" else (1, 2)), row
        own = [state for release, _, state in bench.charges() if release == row.release_id]
        assert own == ["committed"] * row.charges
    assert outcome.best.state == "finished"


@pytest.mark.exhaustive
def test_a_killed_search_goes_on_without_paying_again(bench: Any) -> None:
    command = [sys.executable, "-m", "rayprivacy.cli", "tune", str(bench.space(trials=2)), "--out", "out"]
    with (bench.folder / "log").open("w") as log:
        first = subprocess.Popen(command, cwd=bench.folder, stdout=log, stderr=log, start_new_session=True)
        until = time.monotonic() + 400
        while "committed" not in {state for *_, state in bench.charges()} and time.monotonic() < until:
            assert first.poll() is None, (bench.folder / "log").read_text()
            time.sleep(0.3)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        before = bench.charges()
        assert 0 < len(before) < 4
        done = subprocess.run([*command, "--resume"], cwd=bench.folder, stdout=log, stderr=log, check=False)
    text = (bench.folder / "log").read_text()
    assert done.returncode == 0, text
    assert str(bench.folder / "talk.parquet") not in text
    charges = bench.charges()
    assert {state for *_, state in charges} == {"committed"}
    assert len(charges) == len(set(charges)) == 4
    assert {release for release, *_ in before} <= {release for release, *_ in charges}
    finished = pq.read_table(bench.folder / "out" / "trials.parquet").to_pylist()
    assert [row["state"] for row in finished] == ["finished"] * 2
    assert "best recipe" in text
    assert json.loads(finished[0]["values"])
