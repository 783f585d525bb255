"""Presets of the generator and of two stages: public defaults; own keys override them, and no name is left."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rayprivacy.methods.generator.recipe import PRESETS, GeneratorRecipe
from rayprivacy.methods.registry import load_recipe, parse_recipe
from rayprivacy.methods.two_stage.recipe import TwoStageRecipe
from rayprivacy.runs.files import dump_recipe

JOBS = Path(__file__).parents[2] / "jobs"
USERS = 2500


def _training(**training: Any) -> dict[str, Any]:
    written: dict[str, Any] = parse_recipe({"method": "generator", "training": training}).model_dump(mode="json")
    return dict(written["training"])


def _given(training: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a training that some values name, nested ones too."""
    return {
        key: _given(training[key], value) if isinstance(value, Mapping) else training[key]
        for key, value in values.items()
    }


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_written_as_its_values_and_is_the_same_release(name: str, tmp_path: Path) -> None:
    recipe = parse_recipe({"method": "generator", "training": {"preset": name, "users": USERS}})
    values = {**PRESETS[name], "sampling_rate": PRESETS[name]["expected_batch"] / USERS}
    assert _given(_training(preset=name, users=USERS), values) == values
    (tmp_path / "written.yaml").write_text(dump_recipe(recipe))
    assert "preset" not in (tmp_path / "written.yaml").read_text()
    assert load_recipe(tmp_path / "written.yaml") == recipe
    spelt = parse_recipe({"method": "generator", "training": values})
    assert spelt.release_id == recipe.release_id


def test_own_keys_stand_and_the_other_size_follows_from_the_users() -> None:
    assert _training(preset="good", users=USERS, steps=30)["steps"] == 30
    assert _training(preset="good", users=USERS, expected_batch=50)["sampling_rate"] == 0.02
    assert _training(preset="good", users=USERS, sampling_rate=0.1)["expected_batch"] == 250
    both = _training(preset="quick", sampling_rate=0.1, expected_batch=70)
    assert (both["sampling_rate"], both["expected_batch"], both["steps"]) == (0.1, 70, 40)
    rate = _training(preset="good", users=USERS, optimizer={"learning_rate": 1e-3})["optimizer"]["learning_rate"]
    assert rate == 1e-3


def test_learning_rates_of_presets_are_for_lora() -> None:
    training = {"preset": "good", "users": USERS}
    full = {"method": "generator", "adapter": {"kind": "full"}}
    given = training | {"optimizer": {"learning_rate": 3e-4}}
    rates = [
        parse_recipe(full | {"training": each}).model_dump()["training"]["optimizer"]["learning_rate"]
        for each in (training, given)
    ]
    assert rates == [None, 3e-4]


@pytest.mark.parametrize(("name", "job"), [("quick", "chat"), ("good", "europarl")])
def test_a_preset_is_what_a_packaged_job_does(name: str, job: str) -> None:
    recipe = load_recipe(JOBS / "generator" / f"{job}.yaml")
    assert isinstance(recipe, GeneratorRecipe)
    assert _given(recipe.training.model_dump(), PRESETS[name]) == PRESETS[name]


def test_best_has_the_values_that_the_table_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(JOBS.parent / "benchmarks"))
    from dpsgd_table import ROWS

    changed = {**PRESETS["good"], **(dict(each.split("=") for each in ROWS["noisy_sgd"]))}
    assert {key: float(changed[key]) for key in PRESETS["best"]} == PRESETS["best"]


def test_both_stages_take_what_a_preset_gives_and_no_name_is_left() -> None:
    recipe = load_recipe(
        JOBS / "two_stage" / "smcalflow.yaml", ["training={preset: quick, users: 2600, max_tokens: 40}"]
    )
    assert isinstance(recipe, TwoStageRecipe)
    written = recipe.model_dump(mode="json")["training"]
    assert "preset" not in written
    assert "users" not in written
    for stage, steps in (("trees", 20), ("utterances", 80)):
        training = recipe.training_of(stage)
        assert (training.expected_batch, training.sampling_rate, training.steps) == (30, 30 / 2600, steps)
        assert (training.max_records, training.chunk) == (1, 20)
