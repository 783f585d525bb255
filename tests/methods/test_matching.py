"""Matching as its users run it: one more charge, and released text in the shares that the users voted for."""

import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rayprivacy.accounting.accountant import epsilon
from rayprivacy.blocks import match_plan
from rayprivacy.core.errors import ConfigError
from rayprivacy.methods.registry import load_recipe, method_of, parse_recipe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
LOUD = {"noise_multiplier": 5.0}  # votes that cost epsilon 0.83
MATCH = ["-o", "match={candidates: 3, topics: 3, noise_multiplier: 4.0}"]


def _texts(job: Any, out: str) -> list[str]:
    return list(pq.read_table(job.folder / out / "synthetic.parquet")["text"].to_pylist())


def test_seqpate_releases_the_texts_that_the_users_vote_for_once(job: Any) -> None:
    """Killed after the votes, and finished."""
    died = job.killed("out", "import rayprivacy.blocks.match as m, os; m.raked = lambda *_: os._exit(3)", *MATCH)
    assert died.returncode == 3
    assert not (job.folder / "out" / "synthetic.parquet").exists()
    assert job.kinds().count("commit") == 2
    assert job.run("out", *MATCH, "--resume").returncode == 0
    certificate, metrics = job.certificate("out"), job.metrics("out")
    assert [event["sigma_eff"] for event in certificate["events"]][-1] == 4.0
    assert [stage["name"] for stage in certificate["stages"]] == [
        "release gate",
        "topics and lengths",
        "all stages together",
    ]
    assert certificate["stages"][-1]["epsilon"] <= certificate["epsilon"] * (1 + 1e-6)
    texts = _texts(job, "out")
    candidates = pq.read_table(job.folder / "out" / "public" / "candidates.parquet")["text"].to_pylist()
    assert (len(texts), len(candidates)) == (8, 24)
    assert all(any(each.startswith(text) for each in candidates) for text in texts), "whole, or cut behind a sentence"
    assert metrics["synthetic"]["texts"] == 8
    assert metrics["synthetic"]["match"]["candidates"] == 24
    assert set(metrics["synthetic"]["match"]["total_variation_to_votes"]) == {"topics", "lengths"}
    assert job.kinds().count("commit") == 2
    again = job.run("again", *MATCH)
    assert again.returncode == 0, again.stderr
    assert (job.kinds().count("commit"), _texts(job, "again")) == (2, texts)


@pytest.mark.parametrize("composition", ["gdp", "zcdp", "rdp", "pld"])
def test_the_votes_on_tokens_leave_room_for_these(composition: str) -> None:
    recipe = parse_recipe(
        {
            "method": "seqpate",
            "corpus": {"source": "chitchat"},
            "privacy": {"composition": composition, "epsilon": 3.0},
            "votes": {"queries": 100, "clip": 0.2},
            "match": {"noise_multiplier": 3.0},
        }
    )
    events = method_of(recipe).planned(recipe).events
    accountant = {"gdp": "gdp", "pld": "pld"}.get(composition, "rdp")
    assert len(events) == 2
    assert 2.9 < epsilon(events, recipe.privacy.delta, accountant) <= 3.0


def test_a_recipe_without_matching_is_the_release_that_it_was(job: Any) -> None:
    recipe = load_recipe(job.recipe)
    values = recipe.model_dump(mode="json")
    matched = parse_recipe({**values, "match": {}})
    assert matched.release_id != recipe.release_id
    # Users vote for topics of what was written: other candidates are another release.
    written = {**values["generation"], "texts": 9}
    assert parse_recipe({**values, "generation": written}).release_id == recipe.release_id
    assert parse_recipe({**values, "generation": written, "match": {}}).release_id != matched.release_id


@pytest.mark.exhaustive
def test_a_row_of_the_frontier_is_measured_and_found_again(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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
    codes = {"values": {"topic": ["food", "travel"]}, **LOUD}
    said = {
        "method": "generator",
        "corpus": {"source": "chitchat", "labels": ["topic"]},
        "privacy": {"epsilon": 1.0},
        "training": {"sampling_rate": 0.05, "expected_batch": 50, "steps": 10},
        "codes": codes,
        "match": LOUD,
    }
    recipe = parse_recipe(said)
    words = r"epsilon is 1, and what is released besides the steps .* costs 1\.\d+ by itself"
    with pytest.raises(ConfigError, match=words):
        method_of(recipe).planned(recipe)
    left_out: dict[str, Any] = {"noise_multiplier": None}
    recipe = parse_recipe(said | {"match": {}, "codes": codes | left_out})
    assert (recipe.codes.sigma, recipe.match.sigma) == (15.0, 15.0)
    assert method_of(recipe).planned(recipe).events


@pytest.mark.parametrize(("asked", "sigma"), [(0.5, 30.0), (1.0, 15.0), (3.0, 5.0), (8.0, 5.0)])
@pytest.mark.parametrize("method", ["seqpate", "generator"])
def test_small_votes_take_a_small_part_of_any_budget(method: str, asked: float, sigma: float) -> None:
    recipe = parse_recipe({"method": method, "privacy": {"epsilon": asked}, "match": {}})
    assert recipe.match.noise_multiplier == sigma, "a number in the recipe that is written down"
    (event,) = method_of(recipe).planned(recipe).stage(match_plan.MATCH).charges
    assert epsilon([event], recipe.privacy.delta, "pld") < 0.3 * asked
    assert parse_recipe(recipe.model_dump(mode="json", by_alias=True)).release_id == recipe.release_id
