"""The packaged recipes ask for the releases they always asked for: names, stages, and every digit of the noise.

A release of another name, or with another event, is another charge: whoever runs a recipe again would pay again. After
a change that is meant, `python tests/proofs/contract/test_pinned_releases.py` writes the file anew.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

import rayprivacy as rp
from rayprivacy.accounting.events import to_json

JOBS = Path(__file__).parents[3] / "jobs"
PINNED = Path(__file__).with_name("pinned_releases.json")
OF_QUESTIONS = JOBS / "question_answering" / "public.yaml"  # it is no recipe of a method
NAMES = [str(path.relative_to(JOBS).with_suffix("")) for path in sorted({*JOBS.rglob("*.yaml")} - {OF_QUESTIONS})]
DEAR = {  # each method but the first has another recipe by day
    *("domain_private/dialog", "edp_sgd/multidogo", "generator/edpsgd", "generator/reviews"),
    *("two_stage/json", "two_stage/smcalflow"),
}


def charges_of(name):
    """The events of the charged stages of a recipe, by the name of the stage, which enters its charges."""
    few = ["sanitize.words=500"] if name.startswith("santext") else []  # a table of all words takes half a minute
    plan = rp.plan(rp.load_recipe(JOBS / f"{name}.yaml", few)).plan
    charges: dict[str, Any] = {each.name: [_digits(to_json(event)) for event in each.charges] for each in plan.charged}
    return charges | ({"second account": _digits(to_json(plan.second.event))} if plan.second else {})


def _digits(event):
    """The event with nine digits of each number: the last ones of a distance are the processor's."""
    return json.loads(json.dumps(event), parse_float=lambda text: float(f"{float(text):.9g}"))


def release_id_of(name):
    return rp.load_recipe(JOBS / f"{name}.yaml").release_id


def test_every_recipe_is_the_release_it_was():
    pinned = json.loads(PINNED.read_text())
    assert {name: release_id_of(name) for name in NAMES} == {name: each["release_id"] for name, each in pinned.items()}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.exhaustive] if name in DEAR else []) for name in NAMES]
)
def test_a_recipe_is_charged_as_it_was(name, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where noise is kept that was calibrated before
    assert charges_of(name) == json.loads(PINNED.read_text())[name]["charges"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        found = {name: {"release_id": release_id_of(name), "charges": charges_of(name)} for name in NAMES}
    PINNED.write_text(json.dumps(found, indent=1) + "\n")
