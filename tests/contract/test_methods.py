"""Walks over all registered methods, so that the next one is covered too."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import rayprivacy as rp
from rayprivacy.core.config import PathKind, path_keys
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.methods.registry import METHODS, method_named, parse_recipe
from rayprivacy.runs.audit import shadow_recipe
from rayprivacy.runs.recipe import elsewhere

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "jobs").rglob("*.yaml"))
DAILY = [ROOT / "jobs" / method / "chat.yaml" for method in ("seqpate", "generator")]


def _quick(name: str) -> dict[str, Any]:
    """Values of a recipe whose plan takes no time: neither is noise calibrated, nor is a table of many words made."""
    ours = name in METHODS and "training" in method_named(name).recipe.model_fields
    noise = {"training": {"noise_multiplier": 3.0}} if ours else {}
    return {"method": name, **noise, **({"sanitize": {"words": 500}} if name == "santext" else {})}


@pytest.mark.parametrize("name", rp.method_names())
def test_a_method_has_all_its_parts(name: str) -> None:
    method = method_named(name)
    recipe = parse_recipe(_quick(name))
    assert type(recipe) is method.recipe
    assert method.name == recipe.method == name
    plan = method.planned(recipe)
    assert plan.charges
    assert plan.assumptions
    assert all(stage.reads for stage in plan.stages)
    assert recipe.release_id.startswith(f"{name}-")
    card = method.card
    assert card.citation in f"made by {card.citation}: {card.sentence}"
    assert not card.models or card.ours in card.models
    if card.has_model:
        assert method.reads(recipe).max_tokens >= 1


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_ours_has_a_job_a_page_and_a_recipe_for_clusters(name: str) -> None:
    assert (ROOT / "jobs" / name).is_dir()
    assert (ROOT / "docs" / f"{name}.md").is_file()
    assert (ROOT / "deploy" / "recipes" / f"{name}.yaml").is_file()


@pytest.mark.parametrize("name", rp.method_names())
def test_a_shadow_of_any_method_is_a_recipe_of_its_own_corpus(name: str, tmp_path: Path) -> None:
    """Nothing of the audited run is left: shadows would share its caches, or spend its budget.

    The word that marks it is part of no folder's name.
    """
    method = method_named(name)
    data = {
        "method": name,
        "corpus": {"source": "the-audited.parquet"},
        "privacy": {"ledger_key": "the-audited.key", "key": "the-audited"},
    }
    for key in path_keys(method.recipe, PathKind.PRIVATE):
        block, _, field = key.partition(".")
        if block not in ("corpus", "privacy"):
            data.setdefault(block, {})[field] = "the-audited"  # type: ignore[index]
    shadow = shadow_recipe(parse_recipe(data), tmp_path)
    assert "the-audited" not in json.dumps(shadow.model_dump(mode="json"))
    assert shadow.corpus.source == str(tmp_path / "corpus.parquet")
    assert shadow.generation is None or shadow.generation.texts == 1
    moved = elsewhere(data, method.recipe, CorpusConfig(), ledger=tmp_path / "l", key=tmp_path / "k", account="a")
    assert "the-audited" not in json.dumps(moved)
    assert data["privacy"]["key"] == "the-audited", "the given recipe stays as it is"  # type: ignore[index]


@pytest.mark.parametrize("composition", ["gdp", "zcdp", "rdp", "pld"])
@pytest.mark.parametrize("name", rp.method_names())
def test_a_plan_names_the_accountant_that_the_account_has(name: str, composition: str, tmp_path: Path) -> None:
    data = _quick(name) | {"privacy": {"composition": composition, "ledger": f"sqlite:///{tmp_path}/ledger.db"}}
    if name == "seqpate" and composition == "zcdp":
        data["votes"] = {"noise": "laplace", "clip": None}
    try:
        recipe = parse_recipe(data)
    except rp.ConfigError as error:
        assert "privacy.composition" in str(error)  # noqa: PT017 - a rule that the method does not take
        return
    from rayprivacy.runs.account import open_account

    recipe = parse_recipe({**data, "privacy": {**data["privacy"], "epsilon": 20.0}})
    outline = rp.plan(recipe)
    with open_account(recipe, outline.plan) as ledger:
        assert ledger.terms("default").rule.claim == outline.rule.claim
    assert outline.rule.claim in outline.note


def test_a_recipe_without_a_method_is_refused() -> None:
    with pytest.raises(rp.ConfigError, match=r"'method' is missing from the recipe: add it, one of seqpate, generator"):
        parse_recipe({"privacy": {"epsilon": 1.0}})


@pytest.mark.parametrize(
    "path",
    [path if path in DAILY else pytest.param(path, marks=pytest.mark.exhaustive) for path in RECIPES],
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_a_plan_needs_neither_torch_nor_ray_and_three_seconds(path: Path) -> None:
    few = ["sanitize.words=500"] if path.parent.name == "santext" else []
    code = (
        "import sys, rayprivacy as rp\n"
        f"print(rp.plan(rp.load_recipe({str(path)!r}, {few})))\n"
        "print([name for name in ('torch', 'transformers', 'ray', 'sklearn') if name in sys.modules])\n"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds = time.monotonic() - began
    assert done.stdout.endswith("[]\n")
    assert yaml.safe_load(path.read_text())["method"] in done.stdout
    assert seconds < 60, "three on a quiet machine with a warm cache; this is no benchmark"
