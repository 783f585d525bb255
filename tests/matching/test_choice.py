"""Texts are chosen in the wanted shares, none twice, as many as are asked for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.blocks.match import chosen, raked, shares_of

BLOCKS = (4, 3)


def _candidates(seed: int, count: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return np.column_stack([draw.integers(0, size, count) for size in BLOCKS])


@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(1, 80))
def test_as_many_as_are_wanted_and_none_twice(seed: int, count: int, kept: int) -> None:
    cells = _candidates(seed, count)
    draw = np.random.default_rng(seed)
    wanted = [draw.dirichlet(np.full(size, 0.3)) for size in BLOCKS]
    weights = raked(cells, wanted, kept)
    assert ((weights >= 0) & (weights <= 1 + 1e-9)).all()
    places = chosen(weights, cells, seed)
    assert len(places) == min(kept, count)
    assert len(set(places.tolist())) == len(places)
    assert (np.diff(places) > 0).all(), "candidates keep their order"


def test_both_margins_are_met_where_there_are_candidates_enough() -> None:
    cells = _candidates(0, 4000)
    wanted = [np.array([0.7, 0.2, 0.1, 0.0]), np.array([0.1, 0.3, 0.6])]
    places = chosen(raked(cells, wanted, 500), cells, 0)
    for share, found in zip(wanted, shares_of(cells[places], BLOCKS), strict=True):
        assert np.abs(share - found).max() < 0.02


def test_a_cell_with_too_few_candidates_gives_all_of_them() -> None:
    cells = np.column_stack([np.array([0] * 10 + [1] * 990), np.zeros(1000, np.int64)])
    places = chosen(raked(cells, [np.array([0.5, 0.5]), np.ones(1)], 100), cells, 0)
    assert (places < 10).sum() == 10
    assert len(places) == 100


def test_a_cell_without_candidates_leaves_its_share_to_the_others() -> None:
    cells = np.column_stack([np.repeat([0, 1], 500), np.zeros(1000, np.int64)])
    places = chosen(raked(cells, [np.array([0.3, 0.1, 0.6]), np.ones(1)], 100), cells, 0)
    assert len(places) == 100
    assert abs((places < 500).mean() - 0.75) < 0.15


@pytest.mark.parametrize("kept", [1000, 1001])
def test_all_are_taken_where_there_are_not_more(kept: int) -> None:
    cells = _candidates(1, 1000)
    uniform = [np.full(size, 1 / size) for size in BLOCKS]
    assert chosen(raked(cells, uniform, kept), cells, 0).tolist() == list(range(1000))


def test_the_choice_repeats_with_its_seed() -> None:
    cells = _candidates(2, 300)
    weights = raked(cells, [np.full(size, 1 / size) for size in BLOCKS], 100)
    first, again, other = (chosen(weights, cells, seed).tolist() for seed in (0, 0, 1))
    assert first == again != other
