"""SIGKILL of a worker and of the whole job in a real run: the same certificate and model, charged once."""

import signal
from typing import Any

import pytest

from rayprivacy.ledger.store import Ledger

pytestmark = pytest.mark.slow

# Functions of a script travel by value, so this runs where the steps do.
HOOK = """
from rayprivacy.dpsgd import train
FLAG, DRIVER, REAL = os.path.abspath("died"), os.getpid(), train.train_worker
def watched(given):
    import os, pathlib, signal
    rename, replace = pathlib.Path.rename, pathlib.Path.replace
    def die(path, target):
        if {when} and not os.path.exists(FLAG):
            pathlib.Path(FLAG).touch()
            for process in {victims}:
                os.kill(process, signal.SIGKILL)
    def renaming(path, target):
        result = rename(path, target)
        die(path, target)
        return result
    def replacing(path, target):
        text = path.read_text() if target.name == "progress" else ""
        result = replace(path, target)
        die(pathlib.Path(text or "none"), target)
        return result
    pathlib.Path.rename, pathlib.Path.replace = renaming, replacing
    REAL(given)
train.train_worker = watched
"""
MID_CHUNK = 'target.name == "progress" and path.name == "3"'
SAVED = 'path.name == ".saving" and target.name == "step-00000002"'
WORKER, JOB = "[os.getpid()]", "[DRIVER, os.getpid()]"


def _kinds(job: Any) -> list[str]:
    ledger = Ledger.open(f"sqlite:///{job.folder}/ledger.db")
    ledger.verify()
    kinds = [entry.kind for entry in ledger.entries("talk") if entry.kind not in ("takeover", "renew")]
    ledger.close()
    return kinds


def _same_as_undisturbed(job: Any, *options: str) -> None:
    """A run that nobody disturbs, of the same release: it ends in the same model, or it would be refused."""
    undisturbed = job.run("undisturbed", *options)
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert job.certificate("undisturbed") == job.certificate("out")
    for name in ("model/model.safetensors", "synthetic.parquet"):
        assert (job.folder / "undisturbed" / name).read_bytes() == (job.folder / "out" / name).read_bytes()
    assert _kinds(job) == ["create", *["reserve", "start", "commit"] * 3]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("more", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_a_job_and_then_a_worker_die_and_the_run_is_finished(generator: Any, more: bool) -> None:
    """With noise that must be made again, and an average that must be kept; with all of eDP-SGD."""
    schedule = tuple(f"noise_schedule.{key}" for key in ("kind=linear", "tau=0.5", "steps_per_epoch=2"))
    (generator.folder / "public.csv").write_text("text\nthe cat sat on my mat\na dog ate the food\n")
    scales = ("layer_scale.from=public", f"layer_scale.source={generator.folder}/public.csv")
    edp = ("microbatches=16", *schedule, *scales)
    keys = ("steps=4", *(("bands=2", "average=ema", "optimizer.kind=adambc") if more else edp))
    training = tuple(part for key in keys for part in ("-o", f"training.{key}"))
    # The job dies between the save of the first chunk and its commit.
    killed = generator.killed("out", HOOK.format(when=SAVED, victims=JOB), *training)
    assert killed.returncode == -signal.SIGKILL
    before = _kinds(generator)
    assert before == ["create", "reserve", "start", "commit", "reserve", "start"]  # never under-counts
    # It is resumed, and a worker dies in the middle of the second chunk: Ray starts it again.
    (generator.folder / "died").unlink()
    resumed = generator.killed("out", HOOK.format(when=MID_CHUNK, victims=WORKER), "--resume", *training)
    assert (generator.folder / "died").exists()
    assert resumed.returncode == 0, resumed.stderr
    _same_as_undisturbed(generator, *training)
    certificate = generator.certificate("out")
    assert more or certificate["figures"]["noise multipliers of steps"].count("(2 steps)") == 2
    said = " ".join(certificate["assumptions"])
    assert more or ("into one of 16 micro-batches" in said and "the scales of layers in 'DP-SGD' have digest" in said)
