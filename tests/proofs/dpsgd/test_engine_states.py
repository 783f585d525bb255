"""Saved states: any number of ranks at any stage goes on from what any other saved; damaged folders are refused."""

import functools
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_cases import ADAM, ENGINES, EXHAUSTIVE, OFFLOADED, SGD, Case, apart, equal, refused, some, taken
from safetensors.torch import load_file

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.files import read_json, write_json
from rayprivacy.dpsgd import checkpoints, collectives

MOMENTUM = SGD.model_copy(update={"momentum": 0.5, "learning_rate": 1e-2})
KINDS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": ADAM},
    "momentum": {"optimizer": MOMENTUM},
    "correlated": {"optimizer": MOMENTUM, "bands": 5},
    "redacted": {"optimizer": ADAM, "redacted": (True, False, True, False)},
}
SPLITS = ((5, 4), (0, 0), (9, 0), (3, 2))
STEPS = {"first": slice(2), "last": slice(2, None), "all": slice(None)}
Weights = dict[str, np.ndarray]
pytestmark = pytest.mark.usefixtures("one_thread")


def _case(engine, steps, kind="adamw"):
    """By two ranks, or by one that is `alone`."""
    splits = SPLITS[STEPS[steps]]
    if engine == "alone":
        splits = tuple((sum(split),) for split in splits)
    chosen = (ENGINES | OFFLOADED | {"alone": ENGINES["plain"]})[engine]
    return Case("gpt2", *chosen, splits, sigma=1.0, first=2 * (steps == "last"), **KINDS[kind])


def _taken(pair, case):
    if len(case.splits[0]) == 1:
        return taken(case)
    first, second = pair.run(taken, case)
    assert equal(first, second)
    return first


@functools.cache
def _undisturbed(kind):
    return taken(_case("alone", "all", kind))


RUNS = [
    *((engine, engine, kind) for engine in ENGINES for kind in ("adamw", "momentum")),  # in one go
    *(("zero2", "alone", "adamw"), ("zero3", "zero2-offload", "adamw"), ("zero0", "zero3", "momentum")),
    *(("alone", "zero3", "correlated"), ("zero2", "plain", "redacted"), ("zero2", "zero3", "adamw")),
    *(("zero3", "alone", "momentum"), ("alone", "zero3-offload", "adamw"), ("alone", "zero1", "momentum")),
    *(("zero1-offload", "zero0", "adamw"), ("zero2", "alone", "correlated"), ("plain", "zero3", "redacted")),
]
BY_DAY = [("plain", "plain", "adamw"), ("zero1", "zero1", "adamw"), *RUNS[10:15]]


@pytest.mark.parametrize(("saved", "loaded", "kind"), some(RUNS, *BY_DAY))
def test_a_run_goes_on_with_other_ranks_and_another_stage(pair, tmp_path, saved, loaded, kind):
    if saved == loaded:
        after = _taken(pair, _case(saved, "all", kind))
    else:
        _taken(pair, replace(_case(saved, "first", kind), save_at=tmp_path))
        after = _taken(pair, replace(_case(loaded, "last", kind), load_from=tmp_path))
    assert apart(after, _undisturbed(kind)) < 1e-4


def test_correlated_noise_is_not_independent_and_not_on_the_disk(tmp_path):
    assert apart(_undisturbed("correlated"), _undisturbed("momentum")) > 1e-4
    taken(replace(_case("alone", "first", "correlated"), save_at=tmp_path))
    kinds = {name.partition(":")[0] for file in tmp_path.glob("*.safetensors") for name in load_file(file)}
    assert kinds == {"weight", "momentum_buffer"}


def test_a_state_before_the_first_step_is_a_state(pair, tmp_path):
    pair.run(taken, Case("gpt2", 3, splits=(), save_at=tmp_path, optimizer=ADAM))
    after = taken(Case("gpt2", splits=((9,),), load_from=tmp_path, optimizer=ADAM, seeds=(1,)))
    assert equal(after, taken(Case("gpt2", splits=((9,),), optimizer=ADAM)))


@pytest.fixture(scope="module")
def whole(pair, tmp_path_factory):
    """A state of two ranks, and `later`, one of the same run."""
    folder = tmp_path_factory.mktemp("states")
    for name, steps in (("state", "first"), ("later", "all")):
        (folder / name).mkdir()
        pair.run(taken, replace(_case("zero2", steps), save_at=folder / name))
    return folder / "state"


def test_states_are_split_private_and_say_what_they_hold(whole):
    facts = read_json(whole / "state.json")
    assert (facts["steps"], facts["updates"], facts["kinds"]) == (2, 2.0, ["exp_avg", "exp_avg_sq"])
    files = list(whole.glob("*.safetensors"))
    assert {path.name for path in files} == set(facts["files"])
    assert all(path.stat().st_mode & 0o077 == 0 for path in whole.iterdir())
    small, large = sorted(path.stat().st_size for path in files)
    assert large < 1.5 * small


SECOND, MANIFEST = "rank-00001-of-00002.safetensors", "state.json"
DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes] | None]] = {  # a file, and what becomes of it
    "a file is missing": (SECOND, None),
    "a file is cut short": (SECOND, lambda data: data[:-100]),
    "one bit is wrong": (SECOND, lambda data: data[:-50] + bytes([data[-50] ^ 1]) + data[-49:]),
    "one file is of another save": (SECOND, None),
    "no manifest": (MANIFEST, None),
    "half a manifest": (MANIFEST, lambda data: data[: len(data) // 2]),
}


@pytest.mark.parametrize(
    ("how", "engine"),
    [
        *((how, "alone") for how in DAMAGES),
        ("one bit is wrong", "zero2"),  # one rank notices, and both stop
        *(pytest.param(how, "zero2", marks=EXHAUSTIVE) for how in DAMAGES if how != "one bit is wrong"),
    ],
)
def test_a_damaged_state_is_refused(whole, tmp_path, pair, how, engine):
    folder = shutil.copytree(whole, tmp_path / "damaged")
    name, change = DAMAGES[how]
    if how == "one file is of another save":
        shutil.copy(whole.with_name("later") / name, folder)
    elif change is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(change((folder / name).read_bytes()))
    case = replace(_case(engine, "last"), load_from=folder)
    for answer in [refused(case)] if engine == "alone" else pair.run(refused, case):
        assert answer.startswith("ShardError: ")
        assert "missing or damaged: load another saved state." in answer


def test_a_state_of_another_model_optimizer_or_step_is_refused(whole):
    case = replace(_case("alone", "last"), load_from=whole)
    assert "is of other parameters" in refused(replace(case, kind="llama"))
    assert "is of AdamW, not of SGD" in refused(replace(case, optimizer=MOMENTUM))
    assert "step 1 was opened before: go on with 2" in refused(replace(case, first=1))
    assert not refused(case)


def test_ranks_that_read_states_of_different_steps_are_refused(tmp_path, monkeypatch):
    """On a shared disk that shows one of them an older folder, they would add up sums of two steps."""
    taken(replace(_case("alone", "first"), save_at=tmp_path))
    case, gather = replace(_case("alone", "last"), load_from=tmp_path), collectives.gather
    assert not refused(case)
    monkeypatch.setattr(collectives, "gather", lambda own: [own, ("", 7)] if own == ("", 2) else gather(own))
    assert "ranks read states of different steps" in refused(case)


@pytest.mark.parametrize("noise", [None, "AES-256"])
def test_a_state_of_another_stream_of_noise_is_refused(whole, tmp_path, noise):
    folder = shutil.copytree(whole, tmp_path / "earlier")
    facts = read_json(folder / MANIFEST)
    assert facts.pop("noise") == "ChaCha20"
    write_json(folder / MANIFEST, facts | ({"noise": noise} if noise else {}))
    answer = refused(replace(_case("alone", "last"), load_from=folder))
    assert f"has noise of {noise or 'another stream'}, which is ChaCha20 in this version: finish the run" in answer


def _save(folder, steps):
    (checkpoints.scratch(folder) / "rank.bin").write_text(str(steps))
    checkpoints.publish(folder, steps, f"head-{steps}", "digest of a corpus")


def test_the_newest_whole_state_is_found_and_the_older_one_deleted(tmp_path):
    assert checkpoints.latest(tmp_path, "digest of a corpus") == (0, None)
    assert checkpoints.ledger_head(None) is None
    for steps in (9, 10, 100, 100):  # the same steps may be saved again
        _save(tmp_path, steps)
        found, state = checkpoints.latest(tmp_path, "digest of a corpus")
        assert found == steps
        assert state is not None
        assert (state / "rank.bin").read_text() == str(steps)
        assert checkpoints.ledger_head(state) == f"head-{steps}"
        assert state.stat().st_mode & 0o077 == 0
    assert len(list(tmp_path.iterdir())) == 1
    (checkpoints.scratch(tmp_path) / "rank.bin").write_text("half")  # one that was being written
    (tmp_path / "step-00000107").mkdir()  # without facts: whatever it is, it is no state
    assert checkpoints.latest(tmp_path, "digest of a corpus")[0] == 100


def test_a_state_of_another_corpus_is_refused(tmp_path):
    _save(tmp_path, 5)
    with pytest.raises(ReleaseError, match="was computed from another corpus"):
        checkpoints.latest(tmp_path, "digest of another corpus")
