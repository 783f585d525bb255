"""Optional blocks: `pretrain` is another base and the same charges, `match` one more. Whole runs: `end_to_end`."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from small_jobs import write_profile

import rayprivacy as rp
from rayprivacy.accounting.accountant import epsilon
from rayprivacy.blocks import match_plan
from rayprivacy.methods.registry import method_of, parse_recipe

QUIET = Console(quiet=True)
BOTH = pytest.mark.parametrize("name", ["seqpate", "generator"])


@BOTH
def test_the_block_is_part_of_the_release_and_a_stage_that_charges_nothing(name):
    values = {"method": name, "corpus": {"source": "chats.parquet"}}
    plain = parse_recipe(values)
    recipe = parse_recipe({**values, "pretrain": {"source": "public.parquet"}})
    own = parse_recipe({**values, "pretrain": {"prompts": "prompts.txt", "texts": 50}})
    plan, written, before = (method_of(each).planned(each) for each in (recipe, own, plain))
    for stage in (plan.stages[0], written.stages[0]):
        assert (stage.name, stage.reads, stage.charges) == ("pretraining", "public text", ())
    assert plan.charges == written.charges == before.charges
    assert plan.stages[1:] == before.stages
    assert set(plan.assumptions) - set(before.assumptions)
    said = "was written by that model; the prompts before it (pretrain.prompts) are public"
    assert any(said in assumption for assumption in written.assumptions)
    own_text = written.stages[0]
    assert {work.what: work.total for work in own_text.work} == {"own_texts_written": 50, "pretraining_steps": 100}
    assert len(own_text.efforts) == len(plan.stages[0].efforts) + 1 > 1
    assert "50 texts that the base model writes" in own_text.detail


@BOTH
def test_what_an_optional_block_says_is_part_of_the_release(name):
    own: tuple[dict[str, int], ...] = ({}, {"texts": 50}, {"text_tokens": 8}, {"text_tokens": 9}, {"sentences": 1})
    public = [{"source": "p.csv"}, {"source": "p.csv", "steps": 101}, *({"prompts": "p.txt", **each} for each in own)]
    written: dict[str, Any] = {"generation": {"texts": 9}}
    blocks = [{}, {"match": {}}, {"match": {}, **written}, *({"pretrain": each} for each in public)]
    plain, *found = (parse_recipe({"method": name, **each}).release_id for each in blocks)
    assert len({plain, *found}) == len(blocks), "users vote for what was written"
    assert parse_recipe({"method": name, **written}).release_id == plain


@pytest.mark.parametrize(
    ("name", "block", "says"),
    [
        ("seqpate", {"source": "none.csv"}, r"pretrain\.source is '.*none\.csv', which does not exist"),
        ("generator", {"source": "nine.csv", "text": "body"}, r"pretrain\.text is 'body', which is not a column"),
        ("seqpate", {"source": "nine.csv"}, r"pretrain\.source has 9 texts that are not empty: give at least 10"),
        ("generator", {"source": "nine.csv"}, r"pretrain\.source has 9 texts that are not empty: give at least 10"),
        ("generator", {"prompts": "none.txt"}, r"the prompts file is .*none\.txt., which cannot be read"),
    ],
)
def test_public_text_that_cannot_be_used_is_refused_first(name, block, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("nine.csv").write_text("text\n" + "\n".join(["hello"] * 9 + [" "] * 20))
    values = {"method": name, "privacy": {"ledger": f"sqlite:///{tmp_path}/ledger.db", "key": str(tmp_path / "key")}}
    with pytest.raises(rp.ConfigError, match=says):
        rp.run(parse_recipe({**values, "pretrain": block}), tmp_path / "out", console=QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["nine.csv"]


@BOTH
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (None, r"match\.words is .*profile\.json, which is no profile: give profile\.json of a finished one\.$"),
        ("knowledge", r"match\.words is .*profile\.json, which is no profile"),
        (
            (),
            r"match\.words is .*profile\.json, a profile in which no word passed its threshold: take one with a larger",
        ),
    ],
)
def test_words_that_no_profile_released_are_refused_first(name, words, says, tmp_path):
    path = tmp_path / "profile.json"
    if words == "knowledge":
        path.write_text('{"release_id": "knowledge-0123456789abcdef", "words": ["secret"]}')
    elif words is not None:
        write_profile(path, *words)
    there = [*tmp_path.iterdir()]
    privacy = {"ledger": f"sqlite:///{tmp_path}/ledger.db", "key": str(tmp_path / "key")}
    recipe = parse_recipe({"method": name, "privacy": privacy, "match": {"words": str(path)}})
    with pytest.raises(rp.ConfigError, match=says) as refused:
        rp.run(recipe, tmp_path / "out", console=QUIET)
    assert "secret" not in str(refused.value)
    assert [*tmp_path.iterdir()] == there


@BOTH
def test_words_are_part_of_the_release_and_change_no_charge(name):
    plain, told = (parse_recipe({"method": name, "match": each}) for each in ({}, {"words": "profile.json"}))
    before, plan = (method_of(each).planned(each) for each in (plain, told))
    assert told.release_id != plain.release_id
    assert plan.charges == before.charges
    assert "; words of profile.json; " in plan.stage(match_plan.MATCH).detail
    noise = [each.stage(match_plan.MATCH).mechanism.noise_std_grid for each in (before, plan)]
    assert noise[1] == pytest.approx(noise[0] * 1.5**0.5), "of one block more"


def test_methods_that_match_nothing_know_no_words():
    with pytest.raises(rp.ConfigError, match="'match' is not a key of the recipe"):
        parse_recipe({"method": "two_stage", "match": {"words": "profile.json"}})


@pytest.mark.parametrize("composition", ["gdp", "zcdp", "rdp", "pld"])
def test_the_votes_on_tokens_leave_room_for_these(composition):
    blocks = {"privacy": {"composition": composition, "epsilon": 3.0}, "votes": {"queries": 100, "clip": 0.2}}
    recipe = parse_recipe({"method": "seqpate", **blocks, "match": {"noise_multiplier": 3.0}})
    events = method_of(recipe).planned(recipe).events
    assert len(events) == 2
    accountant = {"gdp": "gdp", "pld": "pld"}.get(composition, "rdp")
    assert 2.9 < epsilon(events, recipe.privacy.delta, accountant) <= 3.0


def test_votes_on_codes_and_on_texts_share_a_small_budget():
    codes = {"corpus": {"labels": ["topic"]}, "codes": {"values": {"topic": ["food", "travel"]}}}
    recipe = parse_recipe({"method": "generator", "privacy": {"epsilon": 1.0}, "match": {}, **codes})
    assert (recipe.codes.sigma, recipe.match.sigma) == (15.0, 15.0)
    assert method_of(recipe).planned(recipe).events


@pytest.mark.parametrize(("asked", "sigma"), [(0.5, 30.0), (1.0, 15.0), (8.0, 5.0)])
@BOTH
def test_small_votes_take_a_small_part_of_any_budget(name, asked, sigma):
    recipe = parse_recipe({"method": name, "privacy": {"epsilon": asked}, "match": {}})
    assert recipe.match.noise_multiplier == sigma, "a number in the recipe that is written down"
    (event,) = method_of(recipe).planned(recipe).stage(match_plan.MATCH).charges
    assert epsilon([event], recipe.privacy.delta, "pld") < 0.3 * asked
    assert parse_recipe(recipe.model_dump(mode="json", by_alias=True)).release_id == recipe.release_id
