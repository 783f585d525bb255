"""A run that is resumed after the corpus changed: a new release, as if nothing had been there, and never a mixture.

Each method is stopped at some stage, five users ask to be deleted, and the run is resumed. What comes out must be what
a fresh run of the smaller corpus gives (with the same key and ledger it is the same release, charged once), and the
certificate must name that corpus.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
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
from rayprivacy.runs.drive import drive

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
GONE = ["user-3", "user-4", "user-5", "user-6", "user-7"]
OUTPUTS = ("synthetic.parquet", "model/model.safetensors", "certificate.json")


class _StoppedError(Exception):
    pass


def _open_rich_account(job: Any) -> None:
    """An account that can pay for two releases."""
    recipe = load_recipe(job.recipe)
    ledger = Ledger.open(recipe.privacy.ledger)
    meaning = (PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, Budget(30, recipe.privacy.delta))
    plan = method_of(recipe).planned(recipe).charges
    ledger.create_account("talk", *meaning, recipe.privacy.composition, plan=plan)
    ledger.close()


def _run(job: Any, out: str, until: int | None = None) -> None:
    recipe = load_recipe(job.recipe)
    drive(method_of(recipe), recipe, job.folder / out, until=until, console=Console(quiet=True), measured=False)


def _delete_users(job: Any) -> None:
    path = job.folder / "talk.parquet"
    table = pq.read_table(path)
    pq.write_table(table.filter(pc.invert(pc.is_in(table["who"], pc.cast(GONE, table["who"].type)))), path)


def _files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in OUTPUTS}


def _inputs(job: Any) -> list[tuple[str, int]]:
    ledger = Ledger.open(f"sqlite:///{job.folder}/ledger.db")
    release = load_recipe(job.recipe).release_id
    found = [(charge.input_digest, charge.rung) for charge in ledger.charges_of("talk", release)]
    ledger.close()
    return found


def _same_as_fresh(job: Any, before: list[tuple[str, int]]) -> None:
    """The resumed run is a whole run of the corpus as it is now."""
    resumed, charged = _files(job.folder / "out"), _inputs(job)
    assert {digest for digest, _ in before}.isdisjoint({digest for digest, _ in charged[len(before) :]})
    _run(job, "fresh")
    assert _files(job.folder / "fresh") == resumed
    assert _inputs(job) == charged, "the same release was charged again"
    assert len({json.loads(resumed["certificate.json"])["corpus_digest"]}) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "until",
    [pytest.param(1, id="after one chunk"), pytest.param(2, id="after two chunks"), pytest.param(None, id="finished")],
)
def test_a_generator(generator: Any, until: int | None) -> None:
    job = generator
    _open_rich_account(job)
    _run(job, "out", until)
    before = _inputs(job)
    old = _files(job.folder / "out") if until is None else {}
    _delete_users(job)
    _run(job, "out")
    assert all(_files(job.folder / "out")[name] != data for name, data in old.items())
    _same_as_fresh(job, before)


STAGES = {
    "features": (seqpate, "teacher_pool"),
    "teachers": (seqpate.public_side, "round_queries"),
    "votes": (seqpate, "_distilled"),
    "student": (seqpate, "_write"),
    "synthetic text": (driver, "write_certificate"),
    "finished": (None, ""),
}


@pytest.mark.parametrize(
    "stage", [stage if stage == "finished" else pytest.param(stage, marks=pytest.mark.exhaustive) for stage in STAGES]
)
def test_seqpate(job: Any, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _open_rich_account(job)
    _stopped_after(lambda: _run(job, "out"), *STAGES[stage], monkeypatch)
    before = _inputs(job)
    _delete_users(job)
    _run(job, "out")
    _same_as_fresh(job, before)


@pytest.mark.exhaustive
def test_a_corpus_that_comes_back_finds_its_own_release(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of another corpus dies between its model and its text: neither may stand beside the first one's claim."""
    _open_rich_account(job)
    _run(job, "out")
    first, charged = _files(job.folder / "out"), _inputs(job)
    shutil.copy2(job.folder / "talk.parquet", job.folder / "kept.parquet")
    _delete_users(job)
    _stopped_after(lambda: _run(job, "out"), seqpate.writing, "write_samples", monkeypatch)
    assert not (job.folder / "out" / "certificate.json").exists()
    assert (job.folder / "out" / "model" / "model.safetensors").read_bytes() != first["model/model.safetensors"]
    with pytest.raises(ConfigError):
        write_report(job.folder / "out")
    shutil.move(job.folder / "kept.parquet", job.folder / "talk.parquet")
    _run(job, "out")
    again = _files(job.folder / "out")
    assert {name for name in first if first[name] != again[name]} <= {"certificate.json"}  # which has a later head
    assert len(_inputs(job)) == len(charged) + 1


def _stopped_after(run: Callable[[], None], module: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run until what comes next is called."""
    if module is None:
        run()
        return

    def stop(*_: Any, **__: Any) -> None:
        raise _StoppedError

    with monkeypatch.context() as patched:
        patched.setattr(module, name, stop)
        with pytest.raises(_StoppedError):
            run()


@pytest.mark.exhaustive
def test_other_prompts_are_refused(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are public, but a mixture of both would be what no recipe says."""
    prompts, recipe = job.folder / "prompts.txt", yaml.safe_load(job.recipe.read_text())
    prompts.write_text("hello\n")
    job.recipe.write_text(yaml.safe_dump(recipe | {"prompts": str(prompts)}))
    _stopped_after(lambda: _run(job, "out"), *STAGES["features"], monkeypatch)
    prompts.write_text("good morning\n")
    with pytest.raises(ConfigError, match=r"the prompts of .* changed since the run began"):
        _run(job, "out")
    assert _inputs(job) == []
