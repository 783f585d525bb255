"""Whole searches: a selection, one on public text, and those in which every trial pays, chunk by chunk."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import count

import pyarrow.parquet as pq
import pytest
import ray
from commands import command
from dp_accounting.dp_event import ComposedDpEvent, RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from rich.console import Console

from rayprivacy.accounting.accountant import epsilon
from rayprivacy.accounting.events import to_json
from rayprivacy.core.errors import BudgetRefusedError, ConfigError, ReleaseError
from rayprivacy.evaluation.language import synthetic_metrics
from rayprivacy.ledger.certificate import Certificate
from rayprivacy.methods.registry import load_recipe
from rayprivacy.tuning import selection
from rayprivacy.tuning.space import load_space, utility
from rayprivacy.tuning.trials import Trials

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class _Killed(BaseException):
    """Nothing catches it."""


@pytest.mark.exhaustive
def test_a_selection_charges_once(bench, local_ray, nowhere, monkeypatch):
    """Only its winner leaves, also where it dies: one charge, and the same winner."""

    def dies(*_):
        raise _Killed

    def seen(*args):
        figures.append(utility(*args))
        return figures[-1]

    figures: list[float] = []
    real, three = selection.method_of, count(1)
    space = bench.space(charging="select", searcher="random", select={"mean": 4.0})
    for name, patch in (  # before the last trial, then between the commit and the publication
        ("method_of", lambda recipe: dies() if next(three) == 3 else real(recipe)),
        ("publish", dies),
    ):
        with monkeypatch.context() as patched:
            for at, value in (("utility", seen), ("draw_trials", lambda _: 3), (name, patch)):
                patched.setattr(selection, at, value)
            with pytest.raises(_Killed):
                bench.search(space, resume=name == "publish")
    assert len(bench.charges()) == 1
    told = Console(record=True, file=(bench.folder / "told").open("w"))
    winner = bench.search(space, resume=True, console=told)
    assert winner == bench.folder / "out" / "winner"
    losers = sorted(set(figures))[1:]
    assert len(losers) == 2

    loaded = load_space(space)
    trials = Trials.of(loaded, bench.folder / "out")
    expected = RepeatAndSelectDpEvent(ComposedDpEvent(trials.charges({"training.clipping_norm": 1.0})), 4.0, 1.0)
    ((release, rung, state),) = bench.charges()
    (charge,) = bench.ledger.charges_of("search", release)
    assert (rung, state, to_json(charge.event)) == (0, "committed", to_json(expected))
    theirs = RdpAccountant().compose(expected).get_epsilon(1e-6)
    assert epsilon([charge.event], 1e-6, "rdp") == pytest.approx(theirs, rel=0.01)

    certificate = json.loads((winner / "certificate.json").read_text())
    Certificate.parse(certificate)
    assert (certificate["account"], certificate["epsilon"]) == ("search", 8.0)
    assert certificate["events"][0]["kind"] == "repeat-and-select"
    assert certificate["tuning_charge"]["expected_trials"] == 4.0
    files = "model synthetic.parquet recipe.yaml certificate.json certificate.md metrics.json"
    assert {path.name for path in winner.iterdir()} == set(files.split())
    assert len({path.stat().st_mtime for path in winner.rglob("*")}) == 1, "how old the model is says too much"
    recipe = trials.recipe({"training.clipping_norm": 1.0})
    assert utility(winner, recipe, loaded.metric, "synthetic.parquet") == min(figures)
    texts = [str(text) for text in pq.read_table(winner / "synthetic.parquet")["text"].to_pylist()]
    metrics = {"schema_version": 1, "synthetic": {"releasable": True, **synthetic_metrics(texts)}}
    assert json.loads((winner / "metrics.json").read_text()) == metrics

    done = command(["tune", str(space), "--resume", "--out", str(bench.folder / "out")], bench.folder)
    assert done.returncode == 0, done.stderr
    for page in ("report.html", "README.md", "model/README.md"):  # of the released text
        assert certificate["release_id"] in (winner / page).read_text()
    assert not (bench.folder / "out" / "private").exists()
    nowhere([f"{loser:.6g}".encode() for loser in losers], bench.folder / "out", local_ray)
    assert told.export_text().strip() == ""
    with pytest.raises(ReleaseError, match="published elsewhere"):
        bench.search(space, "other")


@pytest.mark.exhaustive
def test_a_public_search_runs_without_the_private_corpus_and_pays_nothing(bench, local_ray):
    private = bench.folder / "talk.parquet"
    public = {"source": str(bench.folder / "public.parquet"), "user": "who", "text": "said", "holdout": 0.0}
    private.rename(public["source"])
    search = {"votes.queries": {"choice": [20, 40]}, "privacy.epsilon": {"uniform": [1.0, 8.0]}}
    blocks = {"recipe": "seqpate.yaml", "search": search, "charging": "public", "public": public, "budget": None}
    outcome = bench.search(bench.space(**blocks, trials=2, objectives="utility_and_epsilon"))
    assert [row.state for row in outcome.rows] == ["finished"] * 2
    assert (outcome.spent, {row.share for row in outcome.rows}) == (None, {None})
    assert not [name for name in ("ledger.db", "secret.key") if (bench.folder / name).exists()]
    assert str(private) in (bench.folder / "out" / "best.yaml").read_text()
    assert ray.is_initialized()


RATES = {"training.optimizer.learning_rate": {"loguniform": [1e-7, 10.0]}}


@pytest.mark.exhaustive
def test_charges_are_the_chunks_that_ran(bench, local_ray):
    outcome, out = bench.search(bench.space(trials=2, concurrent=2)), bench.folder / "out"
    assert [row.state for row in outcome.rows] == ["finished"] * 2
    charges = bench.charges()
    assert len(charges) == sum(row.charges for row in outcome.rows) == 2 * 2
    assert {state for *_, state in charges} == {"committed"}
    assert outcome.best.utility == min(row.utility for row in outcome.rows)
    assert outcome.spent == pytest.approx(sum(row.share for row in outcome.rows), rel=1e-6)
    table = pq.read_table(out / "trials.parquet")
    assert table["release_id"].to_pylist() == [row.release_id for row in outcome.rows]
    assert (out / "frontier.png").stat().st_size > 5_000
    best = load_recipe(out / "best.yaml")
    assert best.release_id == outcome.best.release_id  # running it is the same release, and costs nothing
    assert best.privacy.account == "search"
    with pytest.raises(ConfigError, match="--resume"):
        bench.search(bench.space(trials=2, concurrent=2))
    again = bench.search(bench.space(trials=3, concurrent=2), resume=True)
    assert [row.values for row in again.rows[:2]] == [row.values for row in outcome.rows]
    assert len(bench.charges()) == 3 * 2
    with pytest.raises(ConfigError, match="another space"):
        bench.search(bench.space(search=RATES), resume=True)


def test_an_account_too_small_for_one_trial_is_a_refusal(bench, local_ray):
    budget = {"account": "search", "epsilon": 1.9, "delta": 1e-6}  # a trial takes 2.0
    with pytest.raises(BudgetRefusedError, match=r"no trial ran.*raise budget\.epsilon"):
        bench.search(bench.space(trials=2, budget=budget))
    assert bench.charges() == []


@pytest.mark.exhaustive
def test_a_pruned_trial_pays_for_what_it_ran(bench, local_ray):
    blocks = {"pruning": {"grace": 1, "reduction": 2}, "budget": {"account": "search", "epsilon": 30.0}, "seed": 3}
    outcome = bench.search(bench.space(search=RATES, trials=4, searcher="random", **blocks))
    assert {row.state for row in outcome.rows} == {"finished", "pruned"}
    for row in outcome.rows:
        assert (row.charges, row.planned) == ((2, 2) if row.state == "finished" else (1, 2)), row
        own = [state for release, _, state in bench.charges() if release == row.release_id]
        assert own == ["committed"] * row.charges
    assert outcome.best.state == "finished"


@pytest.mark.exhaustive
def test_a_killed_search_goes_on_without_paying_again(bench):
    words = [sys.executable, "-m", "rayprivacy.cli", "tune", str(bench.space(trials=2)), "--out", "out"]
    with (bench.folder / "log").open("w") as log:
        first = subprocess.Popen(words, cwd=bench.folder, stdout=log, stderr=log, start_new_session=True)
        while "committed" not in {state for *_, state in bench.charges()}:  # the test's own timeout ends it
            assert first.poll() is None, (bench.folder / "log").read_text()
            time.sleep(0.3)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        before = bench.charges()
        assert 0 < len(before) < 4
        done = subprocess.run([*words, "--resume"], cwd=bench.folder, stdout=log, stderr=log, check=False)
    text = (bench.folder / "log").read_text()
    assert done.returncode == 0, text
    assert "best recipe" in text
    assert str(bench.folder / "talk.parquet") not in text
    charges = bench.charges()
    assert {state for *_, state in charges} == {"committed"}
    assert len(charges) == len(set(charges)) == 4
    assert {release for release, *_ in before} <= {release for release, *_ in charges}
    finished = pq.read_table(bench.folder / "out" / "trials.parquet").to_pylist()
    assert [row["state"] for row in finished] == ["finished"] * 2
