"""The cache of calibrated noise saves time and decides nothing; what a run began with decides, while it is enough."""

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from toy_knowledge import ATTRIBUTES

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import user_cache
from rayprivacy.methods.registry import METHODS, method_of, parse_recipe
from rayprivacy.runs import calibration
from rayprivacy.runs.calibration import kept, of_run
from rayprivacy.runs.directory import CALIBRATED as CALIBRATED_FILE
from rayprivacy.runs.directory import INPUTS, Run, calibrated
from rayprivacy.runs.plan import Plan
from rayprivacy.trainer.method import TrainerRecipe, plan_training


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return user_cache() / "noise"


def _fine(_):
    return True


def test_a_number_is_computed_once_for_its_inputs():
    compute = Mock(return_value=0.1 + 0.2)
    assert kept(compute, _fine, 0.1, 40) == kept(compute, _fine, 0.1, 40) == 0.1 + 0.2
    assert compute.call_count == 1
    kept(compute, _fine, 0.1, 41)
    assert compute.call_count == 2


@pytest.mark.parametrize("damage", ["", "nan", "-1", "inf", "0", "half", "1e400"])
def test_a_damaged_file_is_computed_again(cache, damage):
    kept(lambda: 2.5, _fine, "inputs")
    (path,) = cache.iterdir()
    path.write_text(damage)
    assert kept(lambda: 2.5, _fine, "inputs") == 2.5
    assert path.read_text() == "2.5"


def test_a_cache_that_cannot_be_written_is_no_reason_to_stop(cache):
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder should be")
    assert kept(lambda: 2.5, _fine, "inputs") == 2.5


PLD, STEPS = {"composition": "pld"}, {"steps": 20, "chunk": 5}
SANITISED = {"method": "santext", "privacy": {"epsilon": 40.0}, "corpus": {"max_records_per_user": 1}}
WORDS = {"words": 300, "max_tokens": 4}
# A recipe for each way in which noise is calibrated.
CALIBRATED: dict[str, dict[str, Any]] = {
    "steps": {"method": "generator", "training": STEPS},
    "steps of a plan": {"method": "generator", "training": STEPS, "privacy": PLD},
    "falling noise": {
        "method": "edp_sgd",
        "training": STEPS | {"noise_schedule": {"kind": "exponential", "tau": 0.05}},
    },
    "steps beside votes": {"method": "generator", "training": STEPS, "match": {}},
    "two trainings": {"method": "two_stage", "training": {"chunk": 5}},
    "light noise": {
        "method": "domain_private",
        "training": STEPS,
        "redacted": {"schedule": "step", "central": {"account": "plain", "epsilon": 8.0}},
    },
    "counts": {"method": "knowledge", "knowledge": {"attributes": ATTRIBUTES}},
    "passages": {"method": "question_answering", "training": STEPS},
    "trainer": {"method": "trainer", "training": STEPS, "corpus": {"user": "who", "text": "said"}},
    "votes": {"method": "seqpate"},
    "some votes beside others": {"method": "seqpate", "votes": {"queries": 40}, "match": {}},
    "Laplace votes": {
        "method": "seqpate",
        "privacy": {"composition": "zcdp"},
        "votes": {"noise": "laplace", "clip": None, "queries": 40},
    },
    "profile": {"method": "profile"},
    "profile of a plan": {"method": "profile", "privacy": PLD},
    "words of a budget": SANITISED | {"sanitize": WORDS},
    "kept words": SANITISED | {"sanitize": WORDS | {"keep": 0.3}},
    "randomised response": SANITISED | {"sanitize": WORDS | {"mechanism": "randomized_response"}},
}


def _planned(name: str, values: dict[str, Any]) -> Plan:
    data = CALIBRATED[name]
    recipe = TrainerRecipe.parse(data) if data["method"] == "trainer" else parse_recipe(data)
    with of_run(values):
        return plan_training(recipe) if isinstance(recipe, TrainerRecipe) else method_of(recipe).planned(recipe)


def _times(name: str, value: Any, factor: float) -> Any:
    """What was calibrated with so many times the noise."""
    if isinstance(value, float):
        return value / factor if name == "randomised response" else value * factor
    if "sigma" in value:
        return value | {"sigma": value["sigma"] * factor}
    bound, *pair = value["worst"]
    return value | {"epsilon": value["epsilon"] / factor, "worst": [bound / factor, *pair]}


@pytest.mark.parametrize("name", CALIBRATED)
def test_a_begun_run_keeps_its_noise_while_it_is_enough(name, monkeypatch):
    values: dict[str, Any] = {}
    first = _planned(name, values)
    assert len(values) == (2 if name == "light noise" else 1)
    stored = json.loads(json.dumps(values))

    def never(*_):
        raise AssertionError("calibrated anew")

    with monkeypatch.context() as patch:
        patch.setattr(calibration, "_kept", never)  # neither another version's noise nor what its cache holds
        assert _planned(name, stored).charges == first.charges
        more = {digest: _times(name, value, 1.01) for digest, value in stored.items()}
        if name != "light noise":  # its redacted steps are calibrated beside the noisy ones
            noisier = _planned(name, more).charges
            assert noisier != first.charges
            assert len(noisier) == len(first.charges)
    for digest, value in stored.items():  # an accountant of today says that it was not enough
        with pytest.raises(ConfigError, match=r"privacy\.epsilon"):
            _planned(name, stored | {digest: _times(name, value, 0.9)})


def test_every_method_that_calibrates_is_in_the_table():
    methods = {str(data["method"]) for data in CALIBRATED.values()}
    assert methods == {*METHODS, "trainer"}


def _damaged(value: Any) -> Iterator[Any]:
    """A value in ways in which a file may be damaged; a number where values belong is one, and so is the reverse."""
    yield from ("nan", None, [], {}, -1.0, [[]], {"sigma": 1.0} if isinstance(value, float) else 2.5)
    for key in value if isinstance(value, dict) else ():
        yield {name: each for name, each in value.items() if name != key}
        yield from (value | {key: damage} for damage in ("nan", {}, [[]]))


@pytest.mark.parametrize("name", CALIBRATED)
def test_a_damaged_value_of_a_run_is_refused_in_a_sentence_and_one_of_the_cache_is_computed_again(name, cache):
    values: dict[str, Any] = {}
    first = _planned(name, values)
    for digest, value in values.items():
        for damage in _damaged(value):
            with pytest.raises(ConfigError, match="choose another --out"):
                _planned(name, values | {digest: damage})
    files = {path: path.read_text() for path in cache.iterdir()}
    for path, text in files.items():
        for damage in _damaged(json.loads(text)) if name == "kept words" else [{}]:
            path.write_text(json.dumps(damage))
            assert _planned(name, {}).charges == first.charges
    assert {path: path.read_text() for path in files} == files


@pytest.mark.parametrize("damage", ["[]", "", "null", '[["a", 1]]', "2.5", "{"])
def test_a_damaged_file_of_a_run_is_refused_in_a_sentence(tmp_path, damage):
    path = tmp_path / "public" / CALIBRATED_FILE
    path.parent.mkdir()
    path.write_text(damage)
    with pytest.raises(ConfigError, match="is damaged: bring it back"):
        calibrated(tmp_path)
    path.rename(path.with_name(INPUTS))
    with pytest.raises(ConfigError, match="is damaged: bring it back"):
        Run(tmp_path, parse_recipe({"method": "seqpate"})).bind(base="digest")
    assert calibrated(tmp_path) == {}
