"""The recipe of eDP-SGD: what is refused before anything is spent, what names the release, and the paper's figure."""

from pathlib import Path
from typing import Any

import pytest

import rayprivacy as rp
from rayprivacy.accounting import published
from rayprivacy.accounting.accountant import figures
from rayprivacy.accounting.schedule import DecayingNoise, NoiseSchedule
from rayprivacy.methods.edp_sgd.plan import plan_run
from rayprivacy.methods.edp_sgd.recipe import EdpSgdRecipe
from rayprivacy.methods.registry import method_of
from rayprivacy.runs.checks import check_recipe

JOB = Path(__file__).parents[2] / "jobs" / "edp_sgd" / "snips.yaml"
MODELS = (
    {},
    {"intents": ["go"]},
    {"slots": ["go"]},
    {"intents": ["go"], "slots": ["go"]},
    {"layers": 2},
    {"crf": True},
)


def _parsed(**blocks: Any) -> EdpSgdRecipe:
    return EdpSgdRecipe.parse({"method": "edp_sgd", **blocks})


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        ({"audit": {}}, "'audit' is set and method 'edp_sgd' releases a tagger, in whose losses no secret"),
        ({"evaluation": {"compare": 500}}, "evaluation.compare is 500 and method 'edp_sgd' releases no text: set"),
    ],
)
def test_attacks_and_comparisons_are_refused_before_anything_is_spent(blocks: dict[str, Any], said: str) -> None:
    recipe = _parsed(**blocks)
    with pytest.raises(rp.ConfigError, match=said):
        check_recipe(method_of(recipe), recipe, method_of(recipe).planned(recipe))


def test_a_search_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "public.txt").write_text("a line\n")
    (tmp_path / "space.yaml").write_text(
        f"recipe: {JOB}\ncharging: pay_for_all\ntrials: 2\n"
        "budget: {account: search, epsilon: 8.0}\nfixed: {privacy: {epsilon: 2.0, composition: rdp}}\n"
        f"metric: {{name: public_perplexity, text: {tmp_path / 'public.txt'}}}\n"
        "search: {training.clipping_norm: {choice: [0.1, 1.0]}}\n"
    )
    with pytest.raises(rp.ConfigError, match="losses searches cannot read yet: give values of your own"):
        rp.tune(tmp_path / "space.yaml", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_lists_and_the_kind_of_tagger_are_part_of_the_release() -> None:
    recipes = [*(_parsed(model=model) for model in MODELS), _parsed(adapter={"kind": "lora"})]
    assert len({recipe.release_id for recipe in recipes}) == len(recipes)


def test_the_papers_figure_stands_beside_ours_only_where_micro_batches_are_clipped() -> None:
    training = {"sampling_rate": 0.02, "steps": 40, "chunk": 10, "noise_multiplier": 1.5}
    assert not plan_run(_parsed(training=training)).as_published
    micro = training | {"microbatches": 16, "noise_schedule": {"kind": "linear", "tau": 0.1, "steps_per_epoch": 10}}
    plan = plan_run(_parsed(training=micro))
    noise = DecayingNoise(NoiseSchedule("linear", 0.1, 10), 40, workers=16, q=0.02)
    printed = 1.5 * 2 * 4  # z with which z / (2 sqrt N) is ours
    assert noise.effective(printed) == 1.5
    stated = published.edpsgd(noise.as_printed(printed), 1e-6)
    assert plan.as_published == {stated.label: stated.epsilon}
    assert len(plan.stages[0].charges) == 4


def test_the_job_charges_what_it_asks_for() -> None:
    plan = rp.plan(rp.load_recipe(JOB)).plan
    assert figures([(event, 1) for event in plan.charges], 1e-6).epsilon == pytest.approx(8.0, abs=0.02)
    assert not plan.as_published
