"""A run that is resumed after the corpus changed: a new release, as if nothing had been there, and never a mixture.

Each method is stopped at some stage, five users ask to be deleted, and the run is resumed. What comes out must be what
a fresh run of the smaller corpus gives (with the same key and ledger it is the same release, charged once), and the
certificate must name that corpus.
"""

import shutil
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from rich.console import Console

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.registry import load_recipe, method_of
from rayprivacy.methods.seqpate import method as seqpate
from rayprivacy.reporting.page import write_report
from rayprivacy.runs import drive as driver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
GONE = ["user-3", "user-4", "user-5", "user-6", "user-7"]
OUTPUTS = ("synthetic.parquet", "model/model.safetensors", "certificate.json")
# What a stopped run calls next.
STAGES: dict[str, tuple[Any, str]] = {
    "features": (seqpate, "teacher_pool"),
    "teachers": (seqpate.public_side, "round_queries"),
    "votes": (seqpate, "_distilled"),
    "student": (seqpate, "_write"),
    "synthetic text": (driver, "write_certificate"),
}


def _open_rich_account(job):
    """An account that can pay for two releases."""
    recipe = load_recipe(job.recipe)
    meaning = (PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, Budget(30, recipe.privacy.delta))
    plan = method_of(recipe).planned(recipe).charges
    with Ledger.open(recipe.privacy.ledger) as ledger:
        ledger.create_account("talk", *meaning, recipe.privacy.composition, plan=plan)


def _run(job, out="out", until=None):
    recipe, quiet = load_recipe(job.recipe), Console(quiet=True)
    driver.drive(method_of(recipe), recipe, job.folder / out, until=until, console=quiet, measured=False)


def _stopped(job, module, name):
    """Run until what comes next is called."""

    def stop(*_, **__):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, name, stop)
        with pytest.raises(KeyboardInterrupt):
            _run(job)


def _delete_users(job):
    path = job.folder / "talk.parquet"
    table = pq.read_table(path)
    pq.write_table(table.filter(pc.invert(pc.is_in(table["who"], pc.cast(GONE, table["who"].type)))), path)


def _files(job, out="out"):
    return {name: (job.folder / out / name).read_bytes() for name in OUTPUTS}


def _inputs(job):
    release = load_recipe(job.recipe).release_id
    with Ledger.open(f"sqlite:///{job.folder}/ledger.db") as ledger:
        return [(charge.input_digest, charge.rung) for charge in ledger.charges_of("talk", release)]


def _resumed_as_fresh(job):
    """Users are deleted, and the resumed run is a whole run of the corpus as it is now."""
    before = _inputs(job)
    _delete_users(job)
    _run(job)
    resumed, charged = _files(job), _inputs(job)
    assert {digest for digest, _ in before}.isdisjoint({digest for digest, _ in charged[len(before) :]})
    _run(job, "fresh")
    assert _files(job, "fresh") == resumed
    assert _inputs(job) == charged, "the same release was charged again"


@pytest.mark.exhaustive
@pytest.mark.parametrize("until", [1, 2, None])  # chunks; None is the whole run
def test_a_generator(generator, until):
    _open_rich_account(generator)
    _run(generator, until=until)
    old = _files(generator) if until is None else {}
    _resumed_as_fresh(generator)
    assert all(_files(generator)[name] != data for name, data in old.items())


@pytest.mark.parametrize("stage", [*(pytest.param(each, marks=pytest.mark.exhaustive) for each in STAGES), "finished"])
def test_seqpate(job, stage):
    _open_rich_account(job)
    if stage in STAGES:
        _stopped(job, *STAGES[stage])
    else:
        _run(job)
    _resumed_as_fresh(job)


@pytest.mark.exhaustive
def test_a_corpus_that_comes_back_finds_its_own_release(job):
    """A run of another corpus dies between its model and its text: neither may stand beside the first one's claim."""
    _open_rich_account(job)
    _run(job)
    first, charged = _files(job), _inputs(job)
    shutil.copy2(job.folder / "talk.parquet", job.folder / "kept.parquet")
    _delete_users(job)
    _stopped(job, seqpate.writing, "write_samples")
    assert not (job.folder / "out" / "certificate.json").exists()
    assert (job.folder / "out" / "model" / "model.safetensors").read_bytes() != first["model/model.safetensors"]
    with pytest.raises(ConfigError):
        write_report(job.folder / "out")
    shutil.move(job.folder / "kept.parquet", job.folder / "talk.parquet")
    _run(job)
    again = _files(job)
    assert {name for name in first if first[name] != again[name]} <= {"certificate.json"}  # which has a later head
    assert len(_inputs(job)) == len(charged) + 1


@pytest.mark.exhaustive
def test_other_prompts_are_refused(job):
    """They are public, but a mixture of both would be what no recipe says."""
    prompts, recipe = job.folder / "prompts.txt", yaml.safe_load(job.recipe.read_text())
    prompts.write_text("hello\n")
    job.recipe.write_text(yaml.safe_dump(recipe | {"prompts": str(prompts)}))
    _stopped(job, *STAGES["features"])
    prompts.write_text("good morning\n")
    with pytest.raises(ConfigError, match=r"the prompts of .* changed since the run began"):
        _run(job)
    assert not (job.folder / "ledger.db").exists(), "nothing was charged"
