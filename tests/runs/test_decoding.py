"""The engine of a run: decided when it begins, kept when it goes on, and no part of the release."""

import sys
from pathlib import Path

import pytest
import yaml

from rayprivacy.core.errors import ConfigError
from rayprivacy.methods.generator.recipe import GeneratorRecipe
from rayprivacy.methods.registry import method_of
from rayprivacy.methods.seqpate.recipe import SeqPateRecipe
from rayprivacy.runs.checks import check_recipe
from rayprivacy.runs.decide import decided
from rayprivacy.runs.directory import RECIPE, Run, stored_recipe
from rayprivacy.runs.recipe import Recipe

METHODS: tuple[type[Recipe], ...] = (SeqPateRecipe, GeneratorRecipe)


def _recipe(kind: type[Recipe], base: Path | str, engine: str | None = None) -> Recipe:
    written = {"generation": {"engine": engine}} if engine else {}
    return kind.parse({"model": {"base": str(base)}, **written})


def _opened(root: Path, recipe: Recipe) -> Run[Recipe]:
    return Run.open(root, decided(recipe, stored_recipe(root)), resume=True)


def _engine(root: Path, recipe: Recipe) -> str:
    run = _opened(root, recipe)
    stored = yaml.safe_load((root / RECIPE).read_text())["generation"]["engine"]
    assert run.recipe.generation.engine == stored
    return str(stored)


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)


@pytest.mark.parametrize("kind", METHODS)
def test_auto_is_decided_when_a_run_begins_and_kept(
    kind: type[Recipe], tiny_base: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    recipe = _recipe(kind, tiny_base)
    assert _engine(tmp_path / "fast", recipe) == "onnxruntime_float32"
    request.getfixturevalue("not_installed")
    assert _engine(tmp_path / "first", recipe) == "transformers"
    with pytest.raises(ConfigError, match=r"^generation.engine is 'onnxruntime_float32', which is not installed: "):
        _opened(tmp_path / "fast", recipe)


@pytest.mark.parametrize("kind", METHODS)
def test_a_run_that_began_without_the_fastest_engine_goes_on_without_it(
    kind: type[Recipe], tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = _recipe(kind, tiny_base)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "onnx", None)
        _opened(tmp_path, recipe)
    assert _engine(tmp_path, recipe) == "transformers"
    assert _engine(tmp_path, _recipe(kind, tiny_base, "transformers")) == "transformers"
    with pytest.raises(ConfigError, match="holds a run of another recipe"):
        _opened(tmp_path, _recipe(kind, tiny_base, "onnxruntime_float32"))


@pytest.mark.parametrize("kind", METHODS)
def test_a_base_that_cannot_be_read_is_no_reason_to_guess(kind: type[Recipe], tmp_path: Path) -> None:
    assert _engine(tmp_path / "run", _recipe(kind, tmp_path / "nowhere")) == "transformers"


@pytest.mark.parametrize("kind", METHODS)
def test_the_engine_of_written_text_names_no_release(kind: type[Recipe], tiny_base: Path) -> None:
    engines = (None, "transformers", "onnxruntime_float32")
    names = {_recipe(kind, tiny_base, engine).release_id for engine in engines}
    assert len(names) == 1


@pytest.mark.parametrize("kind", METHODS)
def test_with_match_the_engine_is_part_of_the_release_and_a_run_keeps_it(
    kind: type[Recipe], tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users vote on what the engine wrote."""

    def matched(engine: str) -> Recipe:
        return kind.parse({"model": {"base": str(tiny_base)}, "match": {}, "generation": {"engine": engine}})

    engines = ("transformers", "onnxruntime_float32")
    assert len({matched(engine).release_id for engine in engines}) == len(engines)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "onnx", None)
        begun = _opened(tmp_path, matched("auto")).recipe.release_id
    assert _opened(tmp_path, matched("auto")).recipe.release_id == begun
    assert _opened(tmp_path / "other", matched("auto")).recipe.release_id != begun


def test_the_engine_of_pseudo_sentences_names_the_release() -> None:
    pseudo: tuple[dict[str, str], ...] = ({}, {"engine": "transformers"}, {"engine": "onnxruntime_float32"})
    default, slow, fast = (SeqPateRecipe.parse({"pseudo": block}).release_id for block in pseudo)
    assert default == slow != fast


@pytest.mark.usefixtures("not_installed")
def test_an_engine_of_pseudo_sentences_that_is_not_installed_is_refused_first() -> None:
    recipe = SeqPateRecipe.parse({"pseudo": {"engine": "onnxruntime_float32"}})
    with pytest.raises(ConfigError, match=r"^pseudo.engine is 'onnxruntime_float32', which is not installed: "):
        check_recipe(method_of(recipe), recipe, method_of(recipe).planned(recipe))
