"""Walks over all registered methods, so that the next one is covered too."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from toy_knowledge import ATTRIBUTES

import rayprivacy as rp
from rayprivacy.core.config import PathKind, path_keys
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.methods.registry import METHODS, method_named, parse_recipe
from rayprivacy.runs.account import open_account
from rayprivacy.runs.assumptions import CLUSTER
from rayprivacy.runs.audit import shadow_recipe
from rayprivacy.runs.recipe import elsewhere

ROOT = Path(__file__).parents[3]
OF_QUESTIONS = ROOT / "jobs" / "question_answering" / "public.yaml"  # it is no recipe of a method
RECIPES = sorted({*(ROOT / "jobs").rglob("*.yaml")} - {OF_QUESTIONS})


def _quick(name):
    """Values of a recipe whose plan takes no time: neither is noise calibrated, nor is a table of many words made."""
    ours = name in METHODS and "training" in method_named(name).recipe.model_fields
    noise = {"training": {"noise_multiplier": 3.0}} if ours else {}
    asked = {"knowledge": {"attributes": ATTRIBUTES}} if name == "knowledge" else {}
    return {"method": name, **noise, **asked, **({"sanitize": {"words": 500}} if name == "santext" else {})}


@pytest.mark.parametrize("name", rp.method_names())
def test_a_method_has_all_its_parts(name):
    method, recipe = method_named(name), parse_recipe(_quick(name))
    assert type(recipe) is method.recipe
    assert method.name == recipe.method == name
    plan, card = method.planned(recipe), method.card
    assert plan.charges
    assert CLUSTER in plan.assumptions
    assert all(stage.reads for stage in plan.stages)
    assert recipe.release_id.startswith(f"{name}-")
    assert card.citation in f"made by {card.citation}: {card.sentence}"
    assert not card.models or card.ours in card.models
    assert not card.has_model or method.reads(recipe).max_tokens >= 1
    if name in METHODS:
        for path in (f"jobs/{name}", f"docs/{name}.md", f"deploy/recipes/{name}.yaml"):
            assert (ROOT / path).exists(), path


@pytest.mark.parametrize("name", rp.method_names())
def test_a_shadow_of_any_method_is_a_recipe_of_its_own_corpus(name, tmp_path):
    """Nothing of the audited run is left: shadows would share its caches, or spend its budget.

    The word that marks it is part of no folder's name.
    """
    recipe = method_named(name).recipe
    data: dict[str, Any] = _quick(name) | {"corpus": {"source": "the-audited.parquet"}}
    data["privacy"] = {"ledger_key": "the-audited.key", "key": "the-audited"}
    for key in path_keys(recipe, PathKind.PRIVATE):
        block, _, field = key.partition(".")
        if block not in ("corpus", "privacy"):
            data.setdefault(block, {})[field] = "the-audited"
    shadow = shadow_recipe(parse_recipe(data), tmp_path)
    assert "the-audited" not in json.dumps(shadow.model_dump(mode="json"))
    assert shadow.corpus.source == str(tmp_path / "corpus.parquet")
    assert shadow.generation is None or shadow.generation.texts == 1
    moved = elsewhere(data, recipe, CorpusConfig(), ledger=tmp_path / "l", key=tmp_path / "k", account="a")
    assert "the-audited" not in json.dumps(moved)
    assert data["privacy"]["key"] == "the-audited", "the given recipe stays as it is"


@pytest.mark.parametrize("name", rp.method_names())
def test_a_plan_names_the_accountant_that_the_account_has(name, tmp_path):
    for composition in ("gdp", "zcdp", "rdp", "pld"):
        privacy = {"composition": composition, "ledger": f"sqlite:///{tmp_path}/{composition}.db"}
        data = _quick(name) | {"privacy": privacy}
        if name == "seqpate" and composition == "zcdp":
            data["votes"] = {"noise": "laplace", "clip": None}
        try:
            parse_recipe(data)
        except rp.ConfigError as error:
            assert "privacy.composition" in str(error)  # noqa: PT017 - a rule that the method does not take
            continue
        recipe = parse_recipe({**data, "privacy": privacy | {"epsilon": 20.0}})
        outline = rp.plan(recipe)
        with open_account(recipe, outline.plan) as ledger:
            assert ledger.terms("default").rule.claim == outline.rule.claim
        assert outline.rule.claim in outline.note


def test_a_recipe_without_a_method_is_refused():
    with pytest.raises(rp.ConfigError, match=r"'method' is missing from the recipe: add it, one of seqpate, generator"):
        parse_recipe({"privacy": {"epsilon": 1.0}})


PLAN = """
import sys, time, rayprivacy as rp
for path in sys.argv[1:]:
    few, began = ["sanitize.words=500"] if "santext" in path else [], time.monotonic()
    print(rp.plan(rp.load_recipe(path, few)))
    assert time.monotonic() - began < 60, "three on a quiet machine with a warm cache; this is no benchmark"
    assert not {"torch", "transformers", "ray", "sklearn"} & {*sys.modules}, path
"""


@pytest.mark.parametrize("methods", [("seqpate", "generator"), pytest.param(None, marks=pytest.mark.exhaustive)])
def test_a_plan_needs_neither_torch_nor_ray_and_three_seconds(methods):
    """Of two recipes by day, and of all of them at night."""
    paths = [ROOT / "jobs" / method / "chat.yaml" for method in methods] if methods else RECIPES
    done = subprocess.run([sys.executable, "-c", PLAN, *map(str, paths)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(yaml.safe_load(path.read_text())["method"] in done.stdout for path in paths)
