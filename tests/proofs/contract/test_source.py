"""What is read off the source and off fresh processes: seals, imports, examples in docstrings, the page of recipes."""

import doctest
import importlib
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import rayprivacy
from rayprivacy.core.private import Released
from rayprivacy.methods.registry import METHODS, method_named

ROOT = Path(rayprivacy.__file__).parent.parent
SOURCES = {str(path.relative_to(ROOT / "rayprivacy")): path.read_text() for path in (ROOT / "rayprivacy").rglob("*.py")}
EXAMPLES = sorted(name.removesuffix(".py") for name, source in SOURCES.items() if ">>> " in source)
PAGE = runpy.run_path(str(ROOT / "docs" / "tools" / "recipe.py"))


def _files_with(word):
    return {name for name, source in SOURCES.items() if word in source}


def test_only_the_release_layer_touches_the_seal_and_draws_noise():
    users = _files_with("RELEASE_SEAL")
    assert "release/gate.py" in users
    assert {name for name in users if not name.startswith("release/")} == {"core/private.py"}
    assert _files_with("import opendp") | _files_with("from opendp") == {"release/noise.py"}
    with pytest.raises(TypeError, match="only the release gate"):
        Released("text", "run", object())


def test_stored_data_never_chooses_code():
    assert _files_with("from_named_tuple(") == set()
    assert not [name for name in _files_with("import pickle") if name.startswith(("accounting", "ledger", "release"))]


LOADED = """
import json, sys, time
began = time.process_time()
import rayprivacy
found = {"seconds": time.process_time() - began}
for module in sys.argv[1:]:
    __import__(module)
    found[module] = [*sys.modules]
print(json.dumps(found))
"""
MODEL = {"torch", "transformers", "ray", "sklearn"}


@pytest.mark.parametrize(
    "heavy",
    [
        {
            "rayprivacy": MODEL | {"numpy", "pydantic", "sqlalchemy"},
            "rayprivacy.methods.registry": MODEL,
            "rayprivacy.cli": MODEL,
            "rayprivacy.release.noise": {"sklearn", "polars", "torch"},
        },
        {"rayprivacy.tuning.trainable": {"torch", "transformers", "dp_accounting"}},
    ],
)
def test_who_needs_no_model_does_not_import_one(heavy):
    """It would take seconds of every call, and hundreds of megabytes; one process imports one after the other."""
    command = [sys.executable, "-c", LOADED, *heavy]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found.pop("seconds") < 0.2, "the package itself takes milliseconds"
    assert not [(module, name) for module, names in heavy.items() for name in names & {*found[module]}]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_a_module_are_true(name):
    module = importlib.import_module(".".join(["rayprivacy", *name.removesuffix("/__init__").split("/")]))
    assert doctest.testmod(module).failed == 0


def test_the_page_of_recipes_is_up_to_date_and_every_key_on_it_has_a_meaning():
    assert PAGE["PAGE"].read_text() == PAGE["page"](), "run python docs/tools/recipe.py"
    keys = {key for method in METHODS for key in PAGE["keys_of"](method_named(method).recipe)}
    assert len(keys) > 100
    assert sorted(key.name for key in keys if len(key.meaning.split()) < 2 and key.name != "method") == []
