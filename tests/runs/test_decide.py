"""What a recipe leaves to the machines is decided once, and kept wherever the run goes on."""

import shutil
from pathlib import Path

import pytest
import yaml
from toy_bench import QUIET, Bench

import rayprivacy as rp
from rayprivacy.models import backbone
from rayprivacy.runs.decide import format_of
from rayprivacy.tuning.space import load_space
from rayprivacy.tuning.trials import Trials

AUTO = {"model.dtype": "auto"}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Sets what this machine is fast in."""
    _fast(monkeypatch, "bfloat16")
    return monkeypatch


def _fast(machine: pytest.MonkeyPatch, name: str) -> None:
    machine.setattr(backbone, "fast_format", lambda: name)


def _stored(run: Path) -> str:
    return str(yaml.safe_load((run / "recipe.yaml").read_text())["model"]["dtype"])


def test_auto_is_the_default_and_a_run_writes_what_it_became(bench: Bench, machine: pytest.MonkeyPatch) -> None:
    assert bench.load().model.dtype == "float32"
    done = bench.run(overrides=AUTO)
    assert done.recipe.model.dtype == _stored(done.path) == "bfloat16"
    assert done.certificate.release_id == bench.load({"model.dtype": "bfloat16"}).release_id


def test_a_resumed_run_keeps_its_decision_on_another_machine(bench: Bench, machine: pytest.MonkeyPatch) -> None:
    first = bench.run(overrides=AUTO)
    charges = bench.charges()
    _fast(machine, "float32")
    (first.path / "certificate.json").unlink()
    assert bench.run(overrides=AUTO).recipe.model.dtype == "bfloat16"
    assert bench.charges() == charges


def test_another_format_is_another_release_with_its_own_charge(bench: Bench, machine: pytest.MonkeyPatch) -> None:
    one = bench.run("one", AUTO)
    _fast(machine, "float32")
    assert bench.load(AUTO).release_id != one.certificate.release_id
    other = bench.run("other", {**AUTO, "privacy.account": "other"})
    assert other.certificate.release_id != one.certificate.release_id


def test_a_mirrored_run_keeps_its_decision_on_another_machine(bench: Bench, machine: pytest.MonkeyPatch) -> None:
    uri = f"file://{bench.folder}/bucket/run"
    rp.run(bench.load(AUTO), uri, work=bench.folder / "work", console=QUIET)
    shutil.rmtree(bench.folder / "work")
    _fast(machine, "float32")
    again = rp.run(bench.load(AUTO), uri, work=bench.folder / "work", console=QUIET)
    assert again.recipe.model.dtype == "bfloat16"


def test_all_trials_of_a_search_share_one_decision(bench: Bench, machine: pytest.MonkeyPatch) -> None:
    space = load_space(bench.space())
    recipe = yaml.safe_load(bench.recipe.read_text())
    del recipe["model"]["dtype"]
    bench.recipe.write_text(yaml.safe_dump(recipe))
    trials = Trials.of(space, bench.folder / "search")
    assert trials.base["model"]["dtype"] == "bfloat16"
    (bench.folder / "search").mkdir()
    (bench.folder / "search" / "decided.yaml").write_text("model: {dtype: float32}\n")  # when the search began
    assert Trials.of(space, bench.folder / "search").base["model"]["dtype"] == "float32"


def test_a_cluster_is_as_fast_as_its_slowest_node(local_ray: None) -> None:
    """The nodes are asked: this one is asked through Ray, and answers as it does by itself."""
    assert format_of("auto") == backbone.fast_format()
