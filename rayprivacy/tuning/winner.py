"""Publish the winner of a selection: its text, its model, its recipe, and a certificate from the account that paid."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rayprivacy.core.artifacts import digest_json
from rayprivacy.core.files import SHARED, read_json, write_atomic
from rayprivacy.core.keys import Key
from rayprivacy.core.units import Budget
from rayprivacy.evaluation.language import synthetic_metrics
from rayprivacy.ledger.certificate import build_certificate
from rayprivacy.ledger.certificate_text import to_markdown
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.registry import load_recipe, method_of
from rayprivacy.runs.directory import METRICS
from rayprivacy.runs.files import dump_recipe
from rayprivacy.tuning.trial_recipes import Trials

PUBLISHED = "winner"
_ASSUMPTION = (
    "the number of trials of the search was random and stays secret, all trials were independent and cost the same, and"
    " nothing of any trial but this one was looked at, kept or published"
)


def publish(trials: Trials, trial: Path, ledger: Ledger, release_id: str, key: Key) -> None:
    """Make the folder `winner`, whole by rename, from the winner's run directory.

    The trial's own certificate is of the trial's own ledger, which is deleted; `ledger` was charged for the search.
    """
    budget = trials.space.budget
    assert budget is not None
    own = read_json(trial / "certificate.json")
    certificate = build_certificate(
        ledger,
        budget.account,
        release_id,
        corpus_digest=own["corpus_digest"],
        run_request=Budget(budget.epsilon, budget.delta),
        assumptions=[*own["assumptions"], _ASSUMPTION],
        test_key=key.is_test_key,
        versions=own["versions"],
        stages=[{"name": "the winner of a secret number of trials"}],
    )
    scratch = trials.root / f".{PUBLISHED}-{digest_json(release_id)[:8]}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    card = method_of(load_recipe(trial / "recipe.yaml")).card
    for name in card.released_files:
        copy = shutil.copytree if (trial / name).is_dir() else shutil.copy2
        copy(trial / name, scratch / name)
    _write(scratch, certificate, trials, trial)
    texts = [str(text) for text in pq.read_table(scratch / card.texts)["text"].to_pylist()]
    # Of the released text alone: nothing that was measured on private text leaves a selection.
    figures = {"releasable": True, **synthetic_metrics(texts)}
    write_atomic(scratch / METRICS, (json.dumps({"schema_version": 1, "synthetic": figures}) + "\n").encode(), SHARED)
    _at_one_time(scratch)
    scratch.rename(trials.root / PUBLISHED)


def _at_one_time(folder: Path) -> None:
    """Date everything in a folder alike: how old the model is would say how many trials came after it."""
    now = time.time()
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (now, now))


def _write(folder: Path, certificate: dict[str, Any], trials: Trials, trial: Path) -> None:
    write_atomic(folder / "certificate.json", (json.dumps(certificate, indent=2) + "\n").encode(), SHARED)
    write_atomic(folder / "certificate.md", to_markdown(certificate).encode(), SHARED)
    recipe = load_recipe(trial / "recipe.yaml")
    privacy = recipe.privacy.model_copy(update={"ledger": trials.recipe({}).privacy.ledger})
    write_atomic(folder / "recipe.yaml", dump_recipe(recipe.model_copy(update={"privacy": privacy})).encode())
