"""A small search by the charged metric: reports on the ledger beside chunks, and no held-out figure without noise."""

import math
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from rayprivacy.accounting import renyi
from rayprivacy.auditing.scoring import ModelLoss
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.manifest import read_holdout
from rayprivacy.models.backbone import load_backbone
from rayprivacy.models.settings import ModelConfig
from rayprivacy.tuning.heldout_loss import heldout_units
from rayprivacy.tuning.space import load_space
from rayprivacy.tuning.trainable import REFUSED, UTILITY, _Runner
from rayprivacy.tuning.trials import Trials

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
METRIC = {"name": "heldout_loss", "noise_multiplier": 0.5, "max_tokens": 12}
FIXED = {"corpus": {"holdout": 0.5}}
VALUES = {"training.clipping_norm": 1.0}


def exact(folder: Path) -> float:
    backbone = load_backbone(ModelConfig(base=str(folder / "model"), dtype="float32"))
    loss = ModelLoss(backbone, 12).per_token
    units = heldout_units(read_holdout(folder / "private" / "shards"), PrivacyUnit.USER, 4)
    return float(np.mean([loss([row["text"] for row in unit]).mean() for unit in units]))


@pytest.mark.exhaustive
def test_trials_pay_for_their_chunks_and_their_reports_once(bench: Any, local_ray: Path) -> None:
    space = bench.space(
        trials=2, metric=METRIC, fixed=FIXED, pruning={"grace": 2}, budget={"account": "search", "epsilon": 60.0}
    )
    told = Console(record=True, file=(bench.folder / "told").open("w"), width=200)
    outcome = bench.search(space, console=told)
    trials = Trials.of(load_space(space), bench.folder / "out")
    charges = bench.charges()
    assert {state for *_, state in charges} == {"committed"}
    for row in outcome.rows:
        recipe = trials.recipe({"training.clipping_norm": float(row.values.split(": ")[1].rstrip("}"))})
        assert recipe.release_id == row.release_id
        assert (row.state, row.charges, row.planned) == ("finished", 4, 4)
        own = [name for name, *_ in charges if name.startswith(row.release_id)]
        bill = [name for name, _ in trials.bill({"training.clipping_norm": recipe.training.clipping_norm})]
        assert own == bill  # chunk, report, chunk, report
        truth, folder = exact(trials.folder(recipe)), trials.folder(recipe)
        assert 0 < abs(row.utility - truth) < 10
        _nowhere([f"{truth:#.6g}", f"{math.exp(truth):#.6g}"], bench.folder, local_ray)
        assert not (folder / "metrics.json").exists()
        assert trials.report(recipe, 2)[UTILITY] == row.utility  # what a search that is resumed runs again
    assert len(charges) == 2 * 4
    assert bench.charges() == charges
    assert outcome.spent == pytest.approx(sum(row.share for row in outcome.rows), rel=1e-6)
    assert outcome.spent <= 1
    assert f"{outcome.best.utility:.4g}" in told.export_text()
    again = bench.search(space, resume=True)
    assert again.rows == outcome.rows
    assert bench.charges() == charges
    bench.ledger.verify()


@pytest.mark.exhaustive
def test_a_report_that_is_refused_ends_the_trial(bench: Any, local_ray: Path) -> None:
    """Room for the chunks and for half a report: nothing is measured, and the cap is kept."""
    trials = Trials.of(load_space(bench.space(metric=METRIC, fixed=FIXED)), bench.folder / "out")
    *chunks, report = trials.charges(VALUES)
    order = renyi.best_order([*chunks, report], 1e-6)
    room = sum(renyi.rdp(event, (order,))[0] for event in chunks) + renyi.rdp(report, (order,))[0] / 2
    bench.account(renyi.epsilon_at(room, order, 1e-6), order=order)
    with chdir(bench.folder):  # the runner goes there, and is an actor elsewhere
        assert _Runner(trials, VALUES, ".").report(1) == {REFUSED: True, "done": True}
    run = trials.recipe(VALUES).release_id
    assert bench.charges() == [(run, rung, "committed") for rung in (1, 2)]
    assert bench.ledger.status("search").share <= 1
    bench.ledger.verify()


def _nowhere(texts: list[str], *places: Path) -> None:
    for place in places:
        for path in place.rglob("*"):
            if path.is_file() and "private" not in path.relative_to(place).parts:
                content = path.read_bytes()
                assert not [text for text in texts if text.encode() in content], path
