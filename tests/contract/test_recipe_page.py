"""docs/recipe.md is what its generator writes now, and every key on it says what it means."""

import runpy
from pathlib import Path

import rayprivacy
from rayprivacy.methods.registry import METHODS, method_named

TOOL = runpy.run_path(str(Path(rayprivacy.__file__).parent.parent / "docs" / "tools" / "recipe.py"))


def test_the_page_is_up_to_date() -> None:
    assert TOOL["PAGE"].read_text() == TOOL["page"](), "run python docs/tools/recipe.py"


def test_every_key_has_a_meaning() -> None:
    keys = {key for method in METHODS for key in TOOL["keys_of"](method_named(method).recipe)}
    assert len(keys) > 100
    assert sorted(key.name for key in keys if len(key.meaning.split()) < 2 and key.name != "method") == []
