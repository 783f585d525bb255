"""Matching in a recipe: one more charge beside the others, for which they leave room. Whole runs: end to end."""

import sys
from pathlib import Path
from typing import Any

import pytest
from small_jobs import Job

from rayprivacy.accounting.accountant import epsilon
from rayprivacy.blocks import match_plan
from rayprivacy.core.errors import ConfigError
from rayprivacy.methods.registry import method_of, parse_recipe

LOUD = {"noise_multiplier": 5.0}  # votes that cost epsilon 0.83


@pytest.mark.parametrize("composition", ["gdp", "zcdp", "rdp", "pld"])
def test_the_votes_on_tokens_leave_room_for_these(composition: str) -> None:
    blocks = {"privacy": {"composition": composition, "epsilon": 3.0}, "votes": {"queries": 100, "clip": 0.2}}
    recipe = parse_recipe({"method": "seqpate", **blocks, "match": {"noise_multiplier": 3.0}})
    events = method_of(recipe).planned(recipe).events
    assert len(events) == 2
    accountant = {"gdp": "gdp", "pld": "pld"}.get(composition, "rdp")
    assert 2.9 < epsilon(events, recipe.privacy.delta, accountant) <= 3.0


def test_a_recipe_without_matching_is_the_release_that_it_was() -> None:
    def release(**blocks: Any) -> str:
        return parse_recipe({"method": "seqpate", **blocks}).release_id

    written = {"generation": {"texts": 9}}
    assert len({release(), release(match={}), release(match={}, **written)}) == 3, "users vote for what was written"
    assert release(**written) == release(match=None) == release()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.exhaustive
def test_a_row_of_the_frontier_is_measured_and_found_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import frontier

    monkeypatch.setattr(frontier, "_recipe", lambda *_: job.recipe)
    monkeypatch.setattr(sys, "argv", ["frontier.py", "--work", str(job.folder / "rows"), "--compare", "40"])
    arguments = frontier._arguments()
    arguments.override = ["generation.texts=40", "match={candidates: 2, topics: 3}"]
    arguments.work.mkdir()
    found = frontier.row(arguments, "chat", "seqpate", 3.0, "shipped", 0)
    assert {"recall", "topic_total_variation", "length_total_variation"} <= found["figures"].keys()
    assert set(found["heldout_perplexity"]) >= {"base", "released"}
    assert found["gap_closed"] is not None
    assert len(found["samples"]) == 20
    assert set(found["epsilon_by_stage"]) == {"release gate", "topics and lengths", "all stages together"}
    monkeypatch.setattr(frontier, "watched_run", lambda *_: pytest.fail("ran twice"))
    assert frontier.row(arguments, "chat", "seqpate", 3.0, "shipped", 0) == found


def test_votes_that_take_the_whole_budget_together_are_refused() -> None:
    codes: dict[str, Any] = {"values": {"topic": ["food", "travel"]}, **LOUD}
    said = {
        "method": "generator",
        "corpus": {"labels": ["topic"]},
        "privacy": {"epsilon": 1.0},
        "training": {"sampling_rate": 0.05, "expected_batch": 50, "steps": 10},
    }
    recipe = parse_recipe(said | {"codes": codes, "match": LOUD})
    with pytest.raises(ConfigError, match=r"epsilon is 1, and what is released besides the steps .* costs 1\.\d+ by"):
        method_of(recipe).planned(recipe)
    recipe = parse_recipe(said | {"match": {}, "codes": codes | {"noise_multiplier": None}})
    assert (recipe.codes.sigma, recipe.match.sigma) == (15.0, 15.0)
    assert method_of(recipe).planned(recipe).events


@pytest.mark.parametrize(("asked", "sigma"), [(0.5, 30.0), (1.0, 15.0), (8.0, 5.0)])
@pytest.mark.parametrize("method", ["seqpate", "generator"])
def test_small_votes_take_a_small_part_of_any_budget(method: str, asked: float, sigma: float) -> None:
    recipe = parse_recipe({"method": method, "privacy": {"epsilon": asked}, "match": {}})
    assert recipe.match.noise_multiplier == sigma, "a number in the recipe that is written down"
    (event,) = method_of(recipe).planned(recipe).stage(match_plan.MATCH).charges
    assert epsilon([event], recipe.privacy.delta, "pld") < 0.3 * asked
    assert parse_recipe(recipe.model_dump(mode="json", by_alias=True)).release_id == recipe.release_id
