"""The generator's recipe: noise that just fits the budget, what names a release, and presets of this and two stages."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from planned import mechanism as mechanism_of

from rayprivacy.accounting.accountant import epsilon
from rayprivacy.accounting.schedule import DecayingNoise, NoiseSchedule
from rayprivacy.core.errors import BudgetRefusedError, ConfigError
from rayprivacy.core.keys import Key
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.corpus.manifest import read_part, write_part
from rayprivacy.generation.codes import Codes, CodesConfig
from rayprivacy.methods.generator.method import sums_of
from rayprivacy.methods.generator.plan import CODES as SHARES
from rayprivacy.methods.generator.plan import STEPS, plan_run
from rayprivacy.methods.generator.recipe import PRESETS, GeneratorRecipe
from rayprivacy.methods.registry import load_recipe
from rayprivacy.methods.two_stage.recipe import TwoStageRecipe
from rayprivacy.release.histogram import HistogramMechanism
from rayprivacy.runs.account import open_account
from rayprivacy.runs.files import dump_recipe

SIZES = {"sampling_rate": 0.05, "steps": 80, "chunk": 16}
SCHEDULE = {"kind": "linear", "tau": 0.5, "steps_per_epoch": 16}
JOBS = Path(__file__).parents[3] / "jobs"
GOOD = {"preset": "good", "users": 2500}
CODES = {"corpus": {"labels": ["topic"]}, "codes": {"values": {"topic": ["food", "pets"]}}}


def _recipe(**blocks):
    return GeneratorRecipe.parse(blocks)


def _refuses_less_noise(privacy, less, **blocks):
    another = _recipe(privacy=privacy | {"account": "less"}, training=less, **blocks)
    with pytest.raises((BudgetRefusedError, ConfigError)):
        open_account(another, plan_run(another))


def test_bands_are_charged_calibrated_and_written_into_the_certificate():
    recipe = _recipe(privacy={"epsilon": 4.0}, training=SIZES | {"bands": 8})
    plan, mechanism = plan_run(recipe), mechanism_of(recipe, STEPS)
    assert mechanism.parameters["mechanism"] == "banded-gaussian"
    assert (mechanism.sampling_rate, mechanism.bands) == (0.4, 8)
    one = PoissonSampledDpEvent(0.4, GaussianDpEvent(mechanism.noise_multiplier))
    assert plan.charges == [SelfComposedDpEvent(one, 2)] * 5
    assert 3.99 < epsilon(plan.charges, 1e-6, "rdp") <= 4.0
    assert "sampling rate 0.4 per user (Poisson) in every 8th step, noise correlated over 8 steps" in plan.noise
    assert any("into one of 8 groups" in assumption for assumption in plan.assumptions)
    independent = plan_run(_recipe(privacy={"epsilon": 4.0}, training=SIZES))
    assert not any("groups" in assumption for assumption in independent.assumptions)


@pytest.mark.parametrize("composition", ["rdp", "pld"])
def test_noise_that_falls_is_charged_by_level_and_calibrated(composition, tmp_path):
    falling = {"kind": "linear", "tau": 0.5, "steps_per_epoch": 20}
    steps = {"sampling_rate": 0.05, "steps": 60, "chunk": 10, "noise_schedule": falling}
    privacy = {"epsilon": 4.0, "composition": composition, "ledger": f"sqlite:///{tmp_path}/ledger.db"}
    recipe = _recipe(privacy=privacy, training=steps)
    plan, mechanism = plan_run(recipe), mechanism_of(recipe, STEPS)
    assert mechanism.parameters["mechanism"] == "falling-gaussian"
    assert len(plan.charges) == 6
    assert len({str(event) for event in plan.charges}) == 3  # each level its own event
    assert 3.99 < epsilon(plan.charges, 1e-6, composition) <= 4.0  # type: ignore[arg-type]
    by_hand = DecayingNoise(NoiseSchedule("linear", 0.5, 20), 60, 1, "sqrt-n", q=0.05)  # whose z0 is divided by 2
    priced = by_hand.figures(2 * mechanism.noise_multiplier, 1e-6).by[composition]
    assert priced == pytest.approx(epsilon(plan.charges, 1e-6, composition), rel=1e-9)  # type: ignore[arg-type]
    assert "in 3 levels (linear, tau 0.5)" in plan.noise
    assert plan.figures["noise multipliers of steps"].count("(20 steps)") == 3
    open_account(recipe, plan).close()
    _refuses_less_noise(privacy, steps | {"noise_multiplier": mechanism.noise_multiplier * 0.998})


def test_micro_batches_take_twice_the_noise_at_one_epsilon():
    steps = {"sampling_rate": 0.05, "steps": 60, "chunk": 10, "expected_batch": 64}
    users, means = (_recipe(training=steps | more) for more in ({}, {"microbatches": 32}))
    clipped, mechanism = mechanism_of(users, STEPS), mechanism_of(means, STEPS)
    assert mechanism.parameters["mechanism"] == "microbatch-gaussian"
    assert mechanism.event == clipped.event
    assert mechanism.noise_std(0) == 2 * clipped.noise_std(0)
    assert (users.training.divisor, means.training.divisor) == (64, 32)
    plan = plan_run(means)
    assert f"noise on a mean gradient {mechanism.noise_std(0) / 32:.3g} per coordinate" in plan.noise
    assert "of the mean of each of 32 micro-batches, sensitivity 2C" in plan.noise
    assert any("moves their sum by twice the clipping norm" in assumption for assumption in plan.assumptions)


def test_layer_scales_change_the_release_and_not_its_charge():
    scaled = _recipe(training={"layer_scale": {"from": "public", "source": "texts.csv"}})
    assert scaled.release_id != _recipe().release_id
    assert mechanism_of(scaled, STEPS) == mechanism_of(_recipe(), STEPS)
    assert scaled.model_dump()["training"]["layer_scale"] == {"from": "public", "source": "texts.csv", "text": "text"}


@pytest.mark.parametrize("composition", ["rdp", "pld"])
def test_the_noise_is_the_least_that_fits_beside_the_histogram(composition, tmp_path):
    privacy = {"epsilon": 4.0, "composition": composition, "ledger": f"sqlite:///{tmp_path}/ledger.db"}
    recipe = _recipe(privacy=privacy, training={"sampling_rate": 0.05, "steps": 40}, **CODES)
    events, noise = plan_run(recipe).events, mechanism_of(recipe, STEPS).noise_multiplier
    assert len(events) == 2
    assert epsilon(events, 1e-6, composition) <= 4.0  # type: ignore[arg-type]
    open_account(recipe, plan_run(recipe)).close()
    _refuses_less_noise(privacy, {"sampling_rate": 0.05, "steps": 40, "noise_multiplier": noise * 0.999}, **CODES)


def test_without_labels_nothing_but_the_steps_is_charged():
    uniform = _recipe(corpus=CODES["corpus"], codes={**CODES["codes"], "histogram": False})
    for recipe in (_recipe(), uniform):
        assert mechanism_of(recipe, SHARES) is None
        assert len(plan_run(recipe).events) == 1


def test_the_release_id_moves_with_what_is_released():
    base = _recipe(training=SIZES, **CODES).release_id
    nothing = ({"layer_scale": None}, {"noise_schedule": {"kind": "constant"}}, {"bands": 1})
    trained = ({"max_records": 9}, {"noise_schedule": SCHEDULE}, {"bands": 8}, {"microbatches": 16})
    same = [{"resources": {"workers": 2}}, {"generation": {"texts": 9}}, {"evaluation": {"users": 3}}]
    others = [{"seed": 1}, {"adapter": {"rank": 9}}, {"privacy": {"epsilon": 4}}]
    for blocks in (*same, *({"training": SIZES | each} for each in nothing)):
        assert _recipe(**{"training": SIZES, **CODES, **blocks}).release_id == base
    for blocks in (*others, *({"training": SIZES | each} for each in trained)):
        moved = _recipe(**{"training": SIZES, **CODES, **blocks})
        assert moved.release_id != base
        assert GeneratorRecipe.parse(moved.model_dump(mode="json")) == moved


def _sums(folder, rows, unit):
    """The votes of a part for food, pets and other."""
    users, topics = [user for user, _ in rows], [topic for _, topic in rows]
    kinds = {"shard": pa.int32(), "user": pa.string(), "record": pa.int32(), "text": pa.large_string()}
    schema = pa.schema(kinds | {"topic": pa.string()})
    part = pa.table([[0 for _ in rows], users, list(range(len(rows))), ["text" for _ in rows], topics], schema=schema)
    write_part(part, 0, Key.for_tests(), folder)
    codes = Codes(CodesConfig(values={"topic": ("food", "pets")}), ("topic",))
    return np.asarray(sums_of(read_part(folder, 0), codes, HistogramMechanism(cells=3, sigma=5.0, unit=unit)))


def test_a_user_adds_one_vote_however_much_they_write_and_an_empty_part_adds_nothing(tmp_path):
    rows = [("ann", "food")] * 30 + [("ann", "pets")] * 10 + [("bob", "never heard of"), ("bob", None)]
    assert np.allclose(_sums(tmp_path, rows, PrivacyUnit.USER) / 2**20, [0.75, 0.25, 1.0], atol=1e-5)
    assert np.allclose(_sums(tmp_path, rows, PrivacyUnit.RECORD) / 2**20, [30, 10, 2], atol=1e-4)
    assert _sums(tmp_path, [], PrivacyUnit.USER).tolist() == [0, 0, 0]


def _training(adapter="lora", **training):
    return dict(_recipe(adapter={"kind": adapter}, training=training).model_dump(mode="json")["training"])


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_written_as_its_values_and_is_the_same_release(name, tmp_path):
    recipe = _recipe(training=GOOD | {"preset": name})
    values = {**PRESETS[name], "sampling_rate": PRESETS[name]["expected_batch"] / 2500}
    assert _recipe(training=values) == recipe
    (tmp_path / "written.yaml").write_text(dump_recipe(recipe))
    assert "preset" not in (tmp_path / "written.yaml").read_text()
    assert load_recipe(tmp_path / "written.yaml") == recipe


def test_own_keys_stand_and_the_other_size_follows_from_the_users():
    assert _training(**GOOD, steps=30)["steps"] == 30
    assert _training(**GOOD, expected_batch=50)["sampling_rate"] == 0.02
    assert _training(**GOOD, sampling_rate=0.1)["expected_batch"] == 250
    both = _training(preset="quick", sampling_rate=0.1, expected_batch=70)
    assert (both["sampling_rate"], both["expected_batch"], both["steps"]) == (0.1, 70, 40)
    for adapter in ("lora", "full"):
        assert _training(adapter, **GOOD, optimizer={"learning_rate": 1e-3})["optimizer"]["learning_rate"] == 1e-3
    assert _training("full", **GOOD)["optimizer"]["learning_rate"] is None, "those of presets are for LoRA"


@pytest.mark.parametrize(("name", "job"), [("quick", "chat"), ("good", "europarl")])
def test_a_preset_is_what_a_packaged_job_does(name, job):
    training = load_recipe(JOBS / "generator" / f"{job}.yaml").model_dump()["training"]
    for key, value in PRESETS[name].items():
        assert training[key] == (training[key] | value if isinstance(value, Mapping) else value)


def test_both_stages_take_what_a_preset_gives_and_no_name_is_left():
    preset = "training={preset: quick, users: 2600, max_tokens: 40}"
    recipe = load_recipe(JOBS / "two_stage" / "smcalflow.yaml", [preset])
    assert isinstance(recipe, TwoStageRecipe)
    assert {"preset", "users"}.isdisjoint(recipe.model_dump(mode="json")["training"])
    for stage, steps in (("trees", 20), ("utterances", 80)):
        training = recipe.training_of(stage)
        assert (training.expected_batch, training.sampling_rate, training.steps) == (30, 30 / 2600, steps)
        assert (training.max_records, training.chunk) == (1, 20)
