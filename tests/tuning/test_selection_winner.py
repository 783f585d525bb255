"""Which trial of a selection wins, and what a trial may cost: models that diverge, and rare values of a list."""

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from rayprivacy.accounting.selection import select_event
from rayprivacy.core.errors import ConfigError, ReleaseError
from rayprivacy.core.keys import create_key
from rayprivacy.tuning import selection
from rayprivacy.tuning.selection import same_event
from rayprivacy.tuning.trials import Trials

SELECT: dict[str, Any] = {"charging": "select", "searcher": "random", "select": {"mean": 4.0}}
NORMS = {"search": {"training.clipping_norm": {"uniform": [0.1, 1.0]}}}


@pytest.mark.parametrize(
    ("scores", "winner"),
    [
        ([-3.0, -2.0, -4.0], 1),
        ([-2.0, math.nan], 0),
        ([math.nan, -2.0, math.nan, -9.0], 1),
        ([math.inf, -2.0], 1),
        ([math.nan, math.nan], 0),
        ([-math.inf, math.nan, -math.inf], 0),
        ([], None),
    ],
)
def test_a_model_that_diverged_wins_against_no_other(
    bench: Any, monkeypatch: pytest.MonkeyPatch, scores: list[float], winner: int | None
) -> None:
    trials, names = bench.trials(**SELECT, **NORMS), [f"t{i}" for i in range(9)]
    figures = iter(scores)

    def score(_: Trials, folder: Path, __: Any) -> float:
        folder.mkdir(parents=True)
        return next(figures)

    monkeypatch.setattr(selection.session, "ray_session", nullcontext)
    monkeypatch.setattr(selection, "_plan", lambda *_: {name: {} for name in names[: len(scores)]})
    monkeypatch.setattr(selection, "_score", score)
    recipe = trials.recipe({"training.clipping_norm": 1.0})
    found = selection._winner(trials, recipe, None, None)  # type: ignore[arg-type]
    assert found == ("" if winner is None else names[winner])
    left = [path.name for path in (bench.folder / "out" / "private").iterdir()]
    assert left == ([] if winner is None else [names[winner]]), "files of losers are deleted, those of the winner kept"


@pytest.mark.parametrize(
    ("key", "domain"),
    [("steps", {"choice": [4, 6]}), ("steps", {"choice": [4] * 999 + [6]}), ("sampling_rate", {"uniform": [0.1, 0.4]})],
)
def test_trials_of_a_selection_must_cost_the_same(bench: Any, key: str, domain: dict[str, Any]) -> None:
    """Every value of a list is compared with what is charged."""
    same_event(bench.trials(**SELECT, **NORMS))
    with pytest.raises(ConfigError, match="must cost the same"):
        same_event(bench.trials(**SELECT, search={f"training.{key}": domain}))


def test_a_drawn_trial_that_costs_more_is_refused_before_any_runs(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = bench.trials(**SELECT, **NORMS)
    event = same_event(trials)
    key = create_key(bench.folder / "selection.key")
    (bench.folder / "out" / "private").mkdir(parents=True)
    charged = select_event(event, 4.0, "geometric")
    monkeypatch.setattr(selection, "draw_trials", lambda _: 3)
    drawn = iter([{"training.clipping_norm": 0.5}, {"training.steps": 6}, {"training.clipping_norm": 0.5}])
    monkeypatch.setattr(selection, "_drawn", lambda *_: next(drawn))
    for _ in range(2):  # a second try does not draw another plan
        with pytest.raises(ReleaseError, match="costs another amount than the search was charged for"):
            selection._plan(trials, charged, key)
    assert next(drawn, None) is None
