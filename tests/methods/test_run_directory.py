"""A run directory belongs to one recipe, and to the public inputs with which it began."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from rayprivacy.core.errors import ConfigError
from rayprivacy.methods.registry import load_recipe
from rayprivacy.runs.directory import MEASURED, Run, forget_another_corpus, log_entries


@pytest.fixture
def run(tmp_path: Path) -> Run:  # type: ignore[type-arg]
    (tmp_path / "recipe.yaml").write_text("method: seqpate\n")
    return Run.open(tmp_path / "out", load_recipe(tmp_path / "recipe.yaml"), resume=False, console=Console(quiet=True))


def test_a_run_is_held_to_its_public_inputs(run: Run) -> None:  # type: ignore[type-arg]
    run.bind(base_model="a", prompts="b")
    run.bind(base_model="a", prompts="b")
    with pytest.raises(
        ConfigError, match=r"the base model of .*/out changed since the run began: bring the former back"
    ):
        run.bind(base_model="c", prompts="b")
    with pytest.raises(ConfigError, match="the prompts of"):
        run.bind(base_model="a", prompts="c")
    run.bind(base_model="a", prompts="b")


def test_a_run_of_an_older_version_is_bound_when_it_goes_on(run: Run) -> None:  # type: ignore[type-arg]
    run.public("pseudo-0.json").write_text("[]")
    run.bind(base_model="a", prompts="b")
    run.bind(base_model="a", prompts="b", codes="c")  # as a later version may
    with pytest.raises(ConfigError, match="changed since the run began"):
        run.bind(base_model="c", prompts="b")
    with pytest.raises(ConfigError, match="the codes of"):
        run.bind(codes="d")


def test_a_log_that_a_full_disk_has_torn_is_read_and_goes_on(run: Run) -> None:  # type: ignore[type-arg]
    with run.stage("first"):
        pass
    log = run.root / "run.log"
    whole = log.read_bytes()
    log.write_bytes(whole + b'{"time": 1, "stage": "second", "e')
    with run.stage("second"):
        pass
    assert log.read_bytes().startswith(whole + b'{"time": 1, "stage": "second", "e\n{')
    assert set(run.timings()) == {"first", "second"}
    assert [entry["event"] for entry in log_entries(run.root)] == ["start", "done"] * 2


SAID = ("README.md", "certificate.md", "certificate.json")
KEPT = ("model.safetensors", "recipe.yaml")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in (*MEASURED, *SAID, *KEPT):
        (tmp_path / name).write_text("{}")
    (tmp_path / "plots").mkdir()
    (tmp_path / "certificate.json").write_text(json.dumps({"corpus_digest": "a"}))
    return tmp_path


def test_figures_of_another_corpus_are_deleted(root: Path) -> None:
    """Its certificate and cards too, so that no report and no audit takes them for those of what is written now."""
    forget_another_corpus(root, "b")
    assert sorted(path.name for path in root.iterdir()) == sorted(KEPT)


def test_figures_of_the_same_corpus_stay(root: Path) -> None:
    forget_another_corpus(root, "a")
    assert {path.name for path in root.iterdir()} == {*MEASURED, *SAID, *KEPT, "plots"}


def test_a_first_certificate_has_nothing_to_forget(tmp_path: Path) -> None:
    forget_another_corpus(tmp_path, "a")
    assert list(tmp_path.iterdir()) == []
