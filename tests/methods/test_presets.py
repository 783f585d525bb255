"""Presets of the generator and of two stages: public defaults; own keys override them, and no name is left."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rayprivacy.methods.generator.recipe import PRESETS
from rayprivacy.methods.registry import load_recipe, parse_recipe
from rayprivacy.methods.two_stage.recipe import TwoStageRecipe
from rayprivacy.runs.files import dump_recipe

JOBS = Path(__file__).parents[2] / "jobs"
USERS = 2500


def _training(adapter: str = "lora", **training: Any) -> dict[str, Any]:
    recipe = parse_recipe({"method": "generator", "adapter": {"kind": adapter}, "training": training})
    return dict(recipe.model_dump(mode="json")["training"])


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
    assert parse_recipe({"method": "generator", "training": values}).release_id == recipe.release_id


def test_own_keys_stand_and_the_other_size_follows_from_the_users() -> None:
    good = {"preset": "good", "users": USERS}
    assert _training(**good, steps=30)["steps"] == 30
    assert _training(**good, expected_batch=50)["sampling_rate"] == 0.02
    assert _training(**good, sampling_rate=0.1)["expected_batch"] == 250
    both = _training(preset="quick", sampling_rate=0.1, expected_batch=70)
    assert (both["sampling_rate"], both["expected_batch"], both["steps"]) == (0.1, 70, 40)
    for adapter in ("lora", "full"):
        assert _training(adapter, **good, optimizer={"learning_rate": 1e-3})["optimizer"]["learning_rate"] == 1e-3
    assert _training("full", **good)["optimizer"]["learning_rate"] is None, "those of presets are for LoRA"


@pytest.mark.parametrize(("name", "job"), [("quick", "chat"), ("good", "europarl")])
def test_a_preset_is_what_a_packaged_job_does(name: str, job: str) -> None:
    training = load_recipe(JOBS / "generator" / f"{job}.yaml").model_dump()["training"]
    assert _given(training, PRESETS[name]) == PRESETS[name]


def test_best_has_the_values_that_the_table_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(JOBS.parent / "benchmarks"))
    from dpsgd_table import ROWS

    changed = {**PRESETS["good"], **(dict(each.split("=") for each in ROWS["noisy_sgd"]))}
    assert {key: float(changed[key]) for key in PRESETS["best"]} == PRESETS["best"]


def test_both_stages_take_what_a_preset_gives_and_no_name_is_left() -> None:
    preset = "training={preset: quick, users: 2600, max_tokens: 40}"
    recipe = load_recipe(JOBS / "two_stage" / "smcalflow.yaml", [preset])
    assert isinstance(recipe, TwoStageRecipe)
    assert {"preset", "users"}.isdisjoint(recipe.model_dump(mode="json")["training"])
    for stage, steps in (("trees", 20), ("utterances", 80)):
        training = recipe.training_of(stage)
        assert (training.expected_batch, training.sampling_rate, training.steps) == (30, 30 / 2600, steps)
        assert (training.max_records, training.chunk) == (1, 20)
