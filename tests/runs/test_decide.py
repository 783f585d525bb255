"""What a recipe leaves to the machines, number format and engine, is decided once and kept where the run goes on."""

import shutil
import sys

import pytest
import yaml
from toy_bench import QUIET

import rayprivacy as rp
from rayprivacy.core.errors import ConfigError
from rayprivacy.methods.generator.recipe import GeneratorRecipe
from rayprivacy.methods.registry import method_of
from rayprivacy.methods.seqpate.recipe import SeqPateRecipe
from rayprivacy.models import backbone
from rayprivacy.runs.checks import check_recipe
from rayprivacy.runs.decide import decided, format_of
from rayprivacy.runs.directory import RECIPE, Run, stored_recipe
from rayprivacy.runs.recipe import Recipe
from rayprivacy.tuning.space import load_space
from rayprivacy.tuning.trials import Trials

AUTO = {"model.dtype": "auto"}
SAMPLERS: tuple[type[Recipe], ...] = (SeqPateRecipe, GeneratorRecipe)
each_sampler = pytest.mark.parametrize("kind", SAMPLERS)


@pytest.fixture
def machine(monkeypatch):
    _fast(monkeypatch, "bfloat16")
    return monkeypatch


def _fast(machine, name):
    machine.setattr(backbone, "fast_format", lambda: name)


def test_auto_is_decided_once_and_a_resumed_run_keeps_it_on_another_machine(bench, machine):
    assert bench.load().model.dtype == "float32"
    done = bench.run(overrides=AUTO)
    stored = yaml.safe_load((done.path / "recipe.yaml").read_text())["model"]["dtype"]
    assert done.recipe.model.dtype == stored == "bfloat16"
    assert done.certificate.release_id == bench.load({"model.dtype": "bfloat16"}).release_id
    charges = bench.charges()
    _fast(machine, "float32")
    assert bench.load(AUTO).release_id != done.certificate.release_id, "another format is another release"
    (done.path / "certificate.json").unlink()
    assert bench.run(overrides=AUTO).recipe.model.dtype == "bfloat16"
    assert bench.charges() == charges
    other = bench.run("other", {**AUTO, "privacy.account": "other"})
    assert other.certificate.release_id != done.certificate.release_id


def test_a_mirrored_run_keeps_its_decision_on_another_machine(bench, machine):
    uri = f"file://{bench.folder}/bucket/run"
    rp.run(bench.load(AUTO), uri, work=bench.folder / "work", console=QUIET)
    shutil.rmtree(bench.folder / "work")
    _fast(machine, "float32")
    again = rp.run(bench.load(AUTO), uri, work=bench.folder / "work", console=QUIET)
    assert again.recipe.model.dtype == "bfloat16"


def test_all_trials_of_a_search_share_one_decision(bench, machine):
    space = load_space(bench.space())
    recipe = yaml.safe_load(bench.recipe.read_text())
    del recipe["model"]["dtype"]
    bench.recipe.write_text(yaml.safe_dump(recipe))
    trials = Trials.of(space, bench.folder / "search")
    assert trials.base["model"]["dtype"] == "bfloat16"
    (bench.folder / "search").mkdir()
    (bench.folder / "search" / "decided.yaml").write_text("model: {dtype: float32}\n")  # when the search began
    assert Trials.of(space, bench.folder / "search").base["model"]["dtype"] == "float32"


def test_a_cluster_is_as_fast_as_its_slowest_node(local_ray):
    """The nodes are asked: this one is asked through Ray, and answers as it does by itself."""
    assert format_of("auto") == backbone.fast_format()


def _recipe(kind, base, engine="auto", **blocks):
    return kind.parse({"model": {"base": str(base)}, "generation": {"engine": engine}, **blocks})


def _opened(root, recipe):
    return Run.open(root, decided(recipe, stored_recipe(root)), resume=True)


def _engine(root, recipe):
    stored = _opened(root, recipe).recipe.generation.engine
    assert stored == yaml.safe_load((root / RECIPE).read_text())["generation"]["engine"]
    return str(stored)


@pytest.fixture
def not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)


@each_sampler
def test_auto_is_decided_when_a_run_begins_and_kept(kind, tiny_base, tmp_path, request):
    recipe = _recipe(kind, tiny_base)
    assert _engine(tmp_path / "fast", recipe) == "onnxruntime_float32"
    request.getfixturevalue("not_installed")
    assert _engine(tmp_path / "first", recipe) == "transformers"
    with pytest.raises(ConfigError, match=r"^generation.engine is 'onnxruntime_float32', which is not installed: "):
        _opened(tmp_path / "fast", recipe)


@each_sampler
def test_a_run_that_began_without_the_fastest_engine_goes_on_without_it(kind, tiny_base, tmp_path, monkeypatch):
    recipe = _recipe(kind, tiny_base)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "onnx", None)
        _opened(tmp_path, recipe)
    assert _engine(tmp_path, recipe) == "transformers"
    assert _engine(tmp_path, _recipe(kind, tiny_base, "transformers")) == "transformers"
    with pytest.raises(ConfigError, match="holds a run of another recipe"):
        _opened(tmp_path, _recipe(kind, tiny_base, "onnxruntime_float32"))


def test_a_base_that_cannot_be_read_is_no_reason_to_guess(tmp_path):
    assert _engine(tmp_path / "run", _recipe(GeneratorRecipe, tmp_path / "nowhere")) == "transformers"


@each_sampler
def test_the_engine_of_written_text_names_no_release(kind, tiny_base):
    engines = ("auto", "transformers", "onnxruntime_float32")
    assert len({_recipe(kind, tiny_base, engine).release_id for engine in engines}) == 1


@each_sampler
def test_with_match_the_engine_is_part_of_the_release_and_a_run_keeps_it(kind, tiny_base, tmp_path, monkeypatch):
    def matched(engine):
        return _recipe(kind, tiny_base, engine, match={})

    engines = ("transformers", "onnxruntime_float32")
    assert len({matched(engine).release_id for engine in engines}) == len(engines)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "onnx", None)
        begun = _opened(tmp_path, matched("auto")).recipe.release_id
    assert _opened(tmp_path, matched("auto")).recipe.release_id == begun
    assert _opened(tmp_path / "other", matched("auto")).recipe.release_id != begun


def test_the_engine_of_pseudo_sentences_names_the_release():
    pseudo: tuple[dict[str, str], ...] = ({}, {"engine": "transformers"}, {"engine": "onnxruntime_float32"})
    default, slow, fast = (SeqPateRecipe.parse({"pseudo": block}).release_id for block in pseudo)
    assert default == slow != fast


@pytest.mark.usefixtures("not_installed")
def test_an_engine_of_pseudo_sentences_that_is_not_installed_is_refused_first():
    recipe = SeqPateRecipe.parse({"pseudo": {"engine": "onnxruntime_float32"}})
    with pytest.raises(ConfigError, match=r"^pseudo.engine is 'onnxruntime_float32', which is not installed: "):
        check_recipe(method_of(recipe), recipe, method_of(recipe).planned(recipe))
