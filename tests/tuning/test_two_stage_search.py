"""A search by Ray Tune over how two stages share the budget, run to its end on the tiny model."""

import json
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from planned import mechanisms
from rich.console import Console
from small_trees import small_recipe, write_corpus

from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.registry import load_recipe
from rayprivacy.methods.two_stage.plan import PARSES, UTTERANCES
from rayprivacy.methods.two_stage.recipe import TwoStageRecipe
from rayprivacy.tuning.search import start_search

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(900)]


def test_every_split_of_the_budget_is_a_release_that_pays(tmp_path: Path, tiny_base: Path, local_ray: Path) -> None:
    write_corpus(tmp_path, users=16, turns=2)
    recipe = small_recipe(tmp_path, tiny_base)
    recipe["generation"]["texts"] = 8
    (tmp_path / "talk.yaml").write_text(yaml.safe_dump(recipe))
    space = {
        "recipe": "talk.yaml",
        "charging": "pay_for_all",
        "budget": {"account": "search", "epsilon": 8.0},
        "fixed": {"privacy": {"epsilon": 2.0, "composition": "rdp"}, "stages": {"steps": 8}},
        "search": {
            "stages.trees.steps": {"choice": [2, 4, 6]},
            "stages.sigma_ratio": {"loguniform": [0.5, 2.0]},
        },
        "trials": 3,
        "concurrent": 1,
        "searcher": "random",
        "metric": {"name": "distinct_2"},
    }
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(space))
    outcome = start_search(tmp_path / "space.yaml", (), tmp_path / "out", resume=False, console=Console(quiet=True))
    assert [row.state for row in outcome.rows] == ["finished"] * 3
    values = {row.release_id: json.loads(row.values) for row in outcome.rows}
    assert len({each["stages.sigma_ratio"] for each in values.values()}) == 3
    assert all(row.charges == row.planned == 4 for row in outcome.rows)  # chunks of two steps
    assert outcome.best.utility == max(row.utility for row in outcome.rows)
    best = load_recipe(tmp_path / "out" / "best.yaml")
    assert isinstance(best, TwoStageRecipe)
    assert best.release_id == outcome.best.release_id
    chosen = values[best.release_id]
    steps = chosen["stages.trees.steps"]
    assert (best.stages.trees.steps, best.stages.utterances.steps) == (steps, 8 - steps)
    found = mechanisms(best)
    ratio = found[PARSES].noise_multiplier / found[UTTERANCES].noise_multiplier
    assert ratio == pytest.approx(chosen["stages.sigma_ratio"])
    table = pq.read_table(tmp_path / "out" / "trials.parquet")
    assert table["release_id"].to_pylist() == [row.release_id for row in outcome.rows]
    with closing(Ledger.open(f"sqlite:///{tmp_path}/ledger.db")) as ledger:
        ledger.verify()
        lines = ledger.lines("search")
        assert len(lines) == 3 * 4
        assert {line.state for line in lines} == {"committed"}
