"""Saved states: any number of ranks at any stage goes on from what any other saved; damaged folders are refused."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine_cases import ADAM, SGD, Case, apart, refused, taken
from rank_processes import Ranks
from safetensors.torch import load_file

from rayprivacy.core.files import read_json

MOMENTUM = SGD.model_copy(update={"momentum": 0.5, "learning_rate": 1e-2})
FIRST, LAST = ((5, 4), (0, 0)), ((9, 0), (3, 2))
ONE_RANK = {(5, 4): (9,), (0, 0): (0,), (9, 0): (9,), (3, 2): (5,)}

pytestmark = pytest.mark.usefixtures("one_thread")


def _case(zero: int | None, offload: bool, steps: str, optimizer: str, ranks: int = 2) -> Case:
    splits = {"first": FIRST, "last": LAST, "all": FIRST + LAST}[steps]
    splits = splits if ranks == 2 else tuple(ONE_RANK[split] for split in splits)
    chosen = {"adamw": ADAM, "momentum": MOMENTUM}[optimizer]
    return Case("gpt2", zero, offload, splits, sigma=1.0, optimizer=chosen, first=2 * (steps == "last"))


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, dict[str, np.ndarray]]:
    """Four steps on one rank, for each optimizer."""
    return {kind: taken(_case(None, False, "all", kind, 1)) for kind in ("adamw", "momentum")}


@pytest.mark.parametrize(
    ("saved", "loaded", "optimizer"),
    [
        ((2, False), None, "adamw"),  # two ranks, then one without DeepSpeed
        pytest.param((2, False), (3, False), "adamw", marks=pytest.mark.exhaustive),
        ((3, False), (2, True), "adamw"),
        pytest.param((3, False), None, "momentum", marks=pytest.mark.exhaustive),
        pytest.param(None, (3, True), "adamw", marks=pytest.mark.exhaustive),  # one rank without DeepSpeed, then two
        pytest.param(None, (1, False), "momentum", marks=pytest.mark.exhaustive),
        pytest.param((1, True), (0, False), "adamw", marks=pytest.mark.exhaustive),
        ((0, False), (3, False), "momentum"),
    ],
)
def test_a_run_goes_on_with_other_ranks_and_another_stage(
    pair: Ranks,
    tmp_path: Path,
    undisturbed: dict[str, dict[str, np.ndarray]],
    saved: tuple[int, bool] | None,
    loaded: tuple[int, bool] | None,
    optimizer: str,
) -> None:
    if saved:
        pair.run(taken, replace(_case(*saved, "first", optimizer), save_at=tmp_path))
    else:
        taken(replace(_case(None, False, "first", optimizer, 1), save_at=tmp_path))
    if loaded:
        first, second = pair.run(taken, replace(_case(*loaded, "last", optimizer), load_from=tmp_path))
        assert all(np.array_equal(first[name], second[name]) for name in first)
    else:
        first = taken(replace(_case(None, False, "last", optimizer, 1), load_from=tmp_path))
    assert apart(first, undisturbed[optimizer]) < 1e-4


@pytest.mark.parametrize(
    ("optimizer", "engines"),
    [
        ("adamw", (None, 1)),  # the others save and load above
        ("momentum", (3,)),
        pytest.param("adamw", (0, 2, 3), marks=pytest.mark.exhaustive),
        pytest.param("momentum", (None,), marks=pytest.mark.exhaustive),
    ],
)
def test_four_steps_on_two_ranks_are_four_steps_on_one(
    pair: Ranks, undisturbed: dict[str, dict[str, np.ndarray]], optimizer: str, engines: tuple[int | None, ...]
) -> None:
    for zero in engines:
        after = pair.run(taken, _case(zero, False, "all", optimizer))[0]
        assert apart(after, undisturbed[optimizer]) < 1e-4


@pytest.mark.parametrize(("saved", "loaded"), [pytest.param(2, None, marks=pytest.mark.exhaustive), (None, 3)])
def test_correlated_noise_goes_on_with_other_ranks_and_another_stage(
    pair: Ranks, tmp_path: Path, saved: int | None, loaded: int | None
) -> None:
    def case(zero: int | None, steps: str, ranks: int = 2) -> Case:
        return replace(_case(zero, False, steps, "momentum", ranks), bands=5)

    def run(asked: Case) -> dict[str, np.ndarray]:
        return taken(asked) if asked.zero is None else pair.run(taken, asked)[0]

    run(replace(case(saved, "first", 1 if saved is None else 2), save_at=tmp_path))
    after = run(replace(case(loaded, "last", 1 if loaded is None else 2), load_from=tmp_path))
    expected = taken(case(None, "all", 1))
    assert apart(after, expected) < 1e-4
    independent = taken(replace(case(None, "all", 1), bands=1))
    assert apart(after, independent) > 1e-4
    held = {path.name for path in tmp_path.iterdir() if path.suffix == ".safetensors"}
    kinds = {name.partition(":")[0] for file in held for name in load_file(tmp_path / file)}
    assert kinds == {"weight", "momentum_buffer"}  # no noise is on the disk


def test_states_are_split_private_and_say_what_they_hold(pair: Ranks, tmp_path: Path) -> None:
    pair.run(taken, replace(_case(2, False, "first", "adamw"), save_at=tmp_path))
    facts = read_json(tmp_path / "state.json")
    assert (facts["steps"], facts["updates"], facts["kinds"]) == (2, 2.0, ["exp_avg", "exp_avg_sq"])
    assert len(facts["files"]) == 2
    files = [path for path in tmp_path.iterdir() if path.suffix == ".safetensors"]
    assert {path.name for path in files} == set(facts["files"])
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
    sizes = sorted(path.stat().st_size for path in files)
    assert sizes[1] < 1.5 * sizes[0]


def test_a_state_before_the_first_step_is_a_state(pair: Ranks, tmp_path: Path) -> None:
    pair.run(taken, Case("gpt2", 3, splits=(), save_at=tmp_path, optimizer=ADAM))
    after = taken(Case("gpt2", splits=((9,),), load_from=tmp_path, optimizer=ADAM, seeds=(1,)))
    expected = taken(Case("gpt2", splits=((9,),), optimizer=ADAM))
    assert all(np.array_equal(after[name], expected[name]) for name in expected)


@pytest.fixture(scope="module")
def whole(pair: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state of two ranks, and `later`, one of the same run."""
    folder = tmp_path_factory.mktemp("states")
    for name, steps in (("state", "first"), ("later", "all")):
        (folder / name).mkdir()
        pair.run(taken, replace(_case(2, False, steps, "adamw"), save_at=folder / name))
    return folder / "state"


def _flipped(data: bytes) -> bytes:
    return data[:-50] + bytes([data[-50] ^ 1]) + data[-49:]


SECOND, MANIFEST = "rank-00001-of-00002.safetensors", "state.json"
DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes] | None]] = {  # a file, and what becomes of it
    "a file is missing": (SECOND, None),
    "a file is cut short": (SECOND, lambda data: data[:-100]),
    "one bit is wrong": (SECOND, _flipped),
    "one file is of another save": (SECOND, None),
    "no manifest": (MANIFEST, None),
    "half a manifest": (MANIFEST, lambda data: data[: len(data) // 2]),
}


def _damage(folder: Path, how: str, later: Path) -> None:
    name, change = DAMAGES[how]
    path = folder / name
    if how == "one file is of another save":
        shutil.copy(later / name, path)
    elif change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    ("how", "ranks"),
    [
        *((how, 1) for how in DAMAGES),
        ("one bit is wrong", 2),  # one rank notices, and both stop
        *(pytest.param(how, 2, marks=pytest.mark.exhaustive) for how in DAMAGES if how != "one bit is wrong"),
    ],
)
def test_a_damaged_state_is_refused(whole: Path, tmp_path: Path, pair: Ranks, how: str, ranks: int) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(whole, folder)
    _damage(folder, how, whole.with_name("later"))
    if ranks == 2:
        answers = pair.run(refused, replace(_case(2, False, "last", "adamw"), load_from=folder))
    else:
        answers = [refused(replace(_case(None, False, "last", "adamw", 1), load_from=folder))]
    for answer in answers:
        assert answer.startswith("ShardError: ")
        assert "missing or damaged: load another saved state." in answer
    assert not refused(replace(_case(None, False, "last", "adamw", 1), load_from=whole))


def test_a_state_of_another_model_or_optimizer_is_refused(whole: Path) -> None:
    case = replace(_case(None, False, "last", "adamw", 1), load_from=whole)
    assert "is of other parameters" in refused(replace(case, kind="llama"))
    assert "is of AdamW, not of SGD" in refused(replace(case, optimizer=MOMENTUM))


def test_loading_goes_on_with_the_step_after_the_last(whole: Path) -> None:
    case = replace(_case(None, False, "last", "adamw", 1), load_from=whole)
    assert "step 1 was opened before: go on with 2" in refused(replace(case, first=1))
    assert not refused(case)
