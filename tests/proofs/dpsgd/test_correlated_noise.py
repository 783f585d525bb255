"""Correlated noise: C^-1 times the keyed draws, bit for bit, whatever place is asked for and in whatever order."""

import copy
import pickle

import numpy as np
import pytest
import torch

from rayprivacy.core.errors import ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.dpsgd import noise as module
from rayprivacy.dpsgd.noise import CorrelatedNoise, KeyedNoise
from rayprivacy.release.step_mechanism import prefix_strategy

RUN, NAME, STEPS, SIZE = "run-1", "model.layers.0.weight", 12, 5000
KEYED = KeyedNoise(Key.for_tests(), RUN)
STRATEGY = prefix_strategy(4, STEPS)


def _rows(start=0, count=SIZE, steps=range(STEPS)):
    noise = CorrelatedNoise(KEYED, STRATEGY)
    return [noise.normal(step, NAME, start, count).clone() for step in steps]


def test_it_is_the_inverse_of_the_matrix_times_the_keyed_draws():
    rows, columns = np.indices((STEPS, STEPS))
    below = np.array([*STRATEGY, *[0.0] * STEPS])[np.abs(rows - columns)]
    matrix = np.where(rows >= columns, below, 0.0)
    drawn = np.stack([KEYED.normal(step, NAME, 0, SIZE).numpy().astype(float) for step in range(STEPS)])
    found = np.stack([row.numpy().astype(float) for row in _rows()])
    np.testing.assert_allclose(found, np.linalg.solve(matrix, drawn), rtol=0, atol=2e-6)
    np.testing.assert_allclose(matrix @ found, drawn, rtol=0, atol=2e-6)


@pytest.mark.parametrize("at_once", [333, module._AT_ONCE])
def test_any_range_in_any_pieces_is_that_slice_of_the_whole(at_once, monkeypatch):
    every = _rows()
    monkeypatch.setattr(module, "_AT_ONCE", at_once)
    for start, count in ((0, SIZE), (0, 1), (1, 37), (1000, 999), (4999, 1), (3, 4096)):
        for whole, part in zip(every, _rows(start, count), strict=True):
            assert torch.equal(part, whole[start : start + count])


@pytest.mark.parametrize("first", [1, 2, 7, 11])
def test_a_restart_goes_on_bit_for_bit(first):
    assert all(map(torch.equal, _rows()[first:], _rows(steps=range(first, STEPS))))


def test_going_back_to_a_saved_state_forgets_what_came_after():
    noise, whole = CorrelatedNoise(KEYED, STRATEGY), _rows()
    for step in (0, 1, 2, 3, 4, 5, 2, 3, 3, 11, 0):
        assert torch.equal(noise.normal(step, NAME, 0, SIZE), whole[step])


def test_places_share_nothing():
    noise = CorrelatedNoise(KEYED, STRATEGY)
    alone = {place: CorrelatedNoise(KEYED, STRATEGY) for place in [("a", 0), ("a", 50), ("b", 0)]}
    for step in range(6):
        for (name, start), own in alone.items():
            assert torch.equal(noise.normal(step, name, start, 50), own.normal(step, name, start, 50))


@pytest.mark.parametrize("coefficient", [1.0, 0.5])
def test_a_strategy_of_one_scales_the_keyed_noise(coefficient):
    noise = CorrelatedNoise(KEYED, (coefficient,))
    for step in (0, 5, 2):
        assert torch.equal(noise.normal(step, NAME, 3, 100), KEYED.normal(step, NAME, 3, 100) / coefficient)


def test_memory_holds_b_minus_1_rows():
    noise = CorrelatedNoise(KEYED, STRATEGY)
    for step in range(STEPS):
        noise.normal(step, NAME, 0, SIZE)
    (past,) = noise._past.values()
    assert [len(row) for row in past.values] == [SIZE] * 3


def test_the_object_is_sealed_and_a_negative_place_is_refused():
    noise = CorrelatedNoise(KeyedNoise(Key(b"s" * 32), "a private run"), STRATEGY)
    assert f"{noise} {noise!r}" == "CorrelatedNoise(<sealed>) CorrelatedNoise(<sealed>)"
    for escape in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="never pickled"):
            escape(noise)
    for place in ((-1, 1), (0, -1)):
        with pytest.raises(ReleaseError, match="-1"):
            noise.normal(0, NAME, *place)
