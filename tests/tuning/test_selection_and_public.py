"""Selection: one charge, and nothing of losers anywhere. Public search: the private corpus is never opened."""

import json
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import ray
from dp_accounting.dp_event import ComposedDpEvent, RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from rich.console import Console
from small_jobs import write_talk
from typer.testing import CliRunner

from rayprivacy.accounting.accountant import epsilon
from rayprivacy.accounting.events import to_json
from rayprivacy.cli import app
from rayprivacy.core.errors import ReleaseError
from rayprivacy.evaluation.language import synthetic_metrics
from rayprivacy.ledger.certificate import Certificate
from rayprivacy.tuning import selection
from rayprivacy.tuning.space import load_space, utility
from rayprivacy.tuning.trials import Trials

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class _Killed(BaseException):
    """Nothing catches it."""


@pytest.mark.exhaustive
def test_a_selection_charges_once_and_only_its_winner_leaves(
    bench: Any, local_ray: Path, nowhere: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[float] = []

    def dies(*_: Any) -> None:
        raise _Killed

    def seen(*args: Any) -> float:
        figures.append(utility(*args))
        return figures[-1]

    monkeypatch.setattr(selection, "utility", seen)
    monkeypatch.setattr(selection, "draw_trials", lambda event: 3)
    space = bench.space(charging="select", searcher="random", select={"mean": 4.0})
    told = Console(record=True, file=(bench.folder / "told").open("w"))

    # It dies before the last trial, then between the commit and the publication: one charge, and the same winner.
    real, three = selection.method_of, count(1)
    monkeypatch.setattr(selection, "method_of", lambda recipe: dies() if next(three) == 3 else real(recipe))
    with pytest.raises(_Killed):
        bench.search(space)
    monkeypatch.undo()
    monkeypatch.setattr(selection, "utility", seen)
    monkeypatch.setattr(selection, "publish", dies)
    with pytest.raises(_Killed):
        bench.search(space, resume=True)
    monkeypatch.undo()
    assert len(bench.charges()) == 1
    winner = bench.search(space, resume=True, console=told)

    assert winner == bench.folder / "out" / "winner"
    losers = sorted(set(figures))[1:]
    assert len(losers) == 2
    _check_charge(bench, space)
    _check_winner(bench, winner, min(figures))
    _check_report(bench, space, winner)
    assert not (bench.folder / "out" / "private").exists()
    nowhere([f"{loser:.6g}".encode() for loser in losers], bench.folder / "out", local_ray)
    assert told.export_text().strip() == ""
    with pytest.raises(ReleaseError, match="published elsewhere"):
        bench.search(space, "other")


def _check_charge(bench: Any, space: Path) -> None:
    trial = ComposedDpEvent(Trials.of(load_space(space), bench.folder).charges({"training.clipping_norm": 1.0}))
    expected = RepeatAndSelectDpEvent(trial, 4.0, 1.0)
    (release, rung, state) = bench.charges()[0]
    (charge,) = bench.ledger.charges_of("search", release)
    assert (rung, state) == (0, "committed")
    assert to_json(charge.event) == to_json(expected)
    theirs = RdpAccountant().compose(expected).get_epsilon(1e-6)
    assert epsilon([charge.event], 1e-6, "rdp") == pytest.approx(theirs, rel=0.01)
    bench.ledger.verify()


def _check_winner(bench: Any, winner: Path, best: float) -> None:
    certificate = json.loads((winner / "certificate.json").read_text())
    Certificate.parse(certificate)
    assert (certificate["account"], certificate["epsilon"]) == ("search", 8.0)
    assert certificate["events"][0]["kind"] == "repeat-and-select"
    assert certificate["tuning_charge"]["expected_trials"] == 4.0
    assert {path.name for path in winner.iterdir()} == {
        "model", "synthetic.parquet", "recipe.yaml", "certificate.json", "certificate.md", "metrics.json",
    }  # fmt: skip
    assert len({path.stat().st_mtime for path in winner.rglob("*")}) == 1, "how old the model is says too much"
    space = load_space(bench.folder / "space.yaml")
    recipe = Trials.of(space, bench.folder).recipe({"training.clipping_norm": 1.0})
    assert utility(winner, recipe, space.metric, "synthetic.parquet") == best
    assert len(pq.read_table(winner / "synthetic.parquet"))


def _check_report(bench: Any, space: Path, winner: Path) -> None:
    """Its figures are those of the released text, and its page and cards are written from them."""
    metrics = json.loads((winner / "metrics.json").read_text())
    assert set(metrics) == {"schema_version", "synthetic"}
    texts = [str(text) for text in pq.read_table(winner / "synthetic.parquet")["text"].to_pylist()]
    assert metrics["synthetic"] == {"releasable": True, **synthetic_metrics(texts)}
    done = CliRunner().invoke(app, ["tune", str(space), "--resume", "--out", str(bench.folder / "out")])
    assert done.exit_code == 0, done.output
    release = json.loads((winner / "certificate.json").read_text())["release_id"]
    assert release in (winner / "report.html").read_text()
    for card in (winner / "README.md", winner / "model" / "README.md"):
        assert f"of release {release}" in card.read_text()


@pytest.mark.exhaustive
def test_a_public_search_runs_without_the_private_corpus_and_pays_nothing(bench: Any, local_ray: Path) -> None:
    private = bench.folder / "talk.parquet"
    private.unlink()
    write_talk(bench.folder / "public.parquet", "volunteer")
    public = {"source": str(bench.folder / "public.parquet"), "user": "who", "text": "said", "holdout": 0.0}
    space = bench.space(
        recipe="seqpate.yaml",
        search={"votes.queries": {"choice": [20, 40]}, "privacy.epsilon": {"uniform": [1.0, 8.0]}},
        charging="public",
        public=public,
        budget=None,
        trials=2,
        objectives="utility_and_epsilon",
    )
    outcome = bench.search(space)
    assert [row.state for row in outcome.rows] == ["finished"] * 2
    assert (outcome.spent, {row.share for row in outcome.rows}) == (None, {None})
    assert not (bench.folder / "ledger.db").exists()
    assert not (bench.folder / "secret.key").exists()
    assert str(private) in (bench.folder / "out" / "best.yaml").read_text()
    assert ray.is_initialized()
