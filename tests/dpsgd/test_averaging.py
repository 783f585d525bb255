"""Averages of the weights: of what was released, by the step alone, and looked at without moving the training."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_cases import ADAM, Case, made, mine
from rank_processes import Ranks

from rayprivacy.dpsgd.averaging import LAST_WEIGHTS, Averaging
from rayprivacy.dpsgd.settings import DpSgdConfig

CASE = Case("gpt2", splits=((9,), (0,), (5,), (9,), (2,), (0,)), sigma=1.0, optimizer=ADAM)

pytestmark = pytest.mark.usefixtures("one_thread")


def _released(case: Case) -> list[np.ndarray]:
    """What the engine would release after each step, as one vector."""
    engine, found = made(case), []
    for step, split in enumerate(case.splits):
        engine.step(step, mine(case, split))
        found.append(_vector(engine.state_dict()))
    return found


def _vector(weights: dict[str, Any]) -> np.ndarray:
    return np.concatenate([np.asarray(each, dtype=float).ravel() for each in weights.values()])


def _last(case: Case) -> np.ndarray:
    """The same, asked for at the end alone."""
    engine = made(case)
    for step, split in enumerate(case.splits):
        engine.step(step, mine(case, split))
    return _vector(engine.state_dict())


@pytest.fixture(scope="module")
def weights() -> list[np.ndarray]:
    """After each step, with no average."""
    return _released(CASE)


def test_a_tail_is_the_plain_mean_of_its_steps(weights: list[np.ndarray]) -> None:
    found = _released(replace(CASE, average="tail"))  # of steps 1 to 9
    assert np.array_equal(found[0], weights[0])
    for step in range(1, len(weights)):
        np.testing.assert_allclose(found[step], np.mean(weights[1 : step + 1], axis=0), rtol=0, atol=1e-6)


def test_a_moving_average_forgets_its_first_weights_and_then_decays(weights: list[np.ndarray]) -> None:
    found, wanted = _released(replace(CASE, average="ema")), weights[0]
    for step, after in enumerate(weights):
        decay = min(0.99, (1 + step) / (10 + step)) if step else 0.0
        wanted = decay * wanted + (1 - decay) * after
        np.testing.assert_allclose(found[step], wanted, rtol=0, atol=1e-6)
    share = Averaging(DpSgdConfig(average="ema", steps=5000)).share
    assert share(4000) == pytest.approx(0.01)


@pytest.mark.parametrize("average", ["ema", "tail"])
def test_a_model_that_is_looked_at_on_the_way_changes_nothing(average: Any) -> None:
    case = replace(CASE, average=average)
    assert np.array_equal(_released(case)[-1], _last(case))


@pytest.mark.parametrize("zero", [*(pytest.param(zero, marks=pytest.mark.exhaustive) for zero in (1, 2)), 3])
def test_ranks_that_share_the_weights_look_without_moving_them(pair: Ranks, zero: int, weights: Any) -> None:
    case = replace(CASE, zero=zero, splits=((5, 4), (0, 0), (5, 0), (9, 0), (1, 1), (0, 0)), average="tail")
    (each, same), alone = pair.run(_released, case), _released(replace(CASE, average="tail"))
    assert all(map(np.array_equal, each, same))
    assert np.array_equal(each[-1], pair.run(_last, case)[0])
    moved = np.linalg.norm(alone[-1] - weights[0])
    for found, wanted in zip(each, alone, strict=True):
        assert np.linalg.norm(found - wanted) < 1e-4 * moved


def test_the_last_weights_have_the_whole_share() -> None:
    assert {LAST_WEIGHTS.share(step) for step in range(100)} == {1.0}
    assert {Averaging(DpSgdConfig()).share(step) for step in range(100)} == {1.0}


@pytest.mark.parametrize(("tail", "first"), [(0.25, 75), (1.0, 0), (0.001, 99)])
def test_a_tail_begins_at_its_part_of_the_steps(tail: float, first: int) -> None:
    share = Averaging(DpSgdConfig(steps=100, average="tail", tail=tail)).share
    assert {share(step) for step in range(first + 1)} == {1.0}
    assert [share(step) for step in range(first, 100)] == [1 / (step - first + 1) for step in range(first, 100)]
