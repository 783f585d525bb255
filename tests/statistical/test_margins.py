"""Margins: how far one unit can move the sums of several partitions."""

import math

import numpy as np
import pytest
from adversaries import Array
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.core.errors import ConfigError, EventError, ReleaseError
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.release.histogram import SCALE, Margins

BLOCKS = (5, 3)
SMALL = Margins(BLOCKS, sigma=3.0)
LARGEST, LEAST = 2**63 - 1, -(2**63)
WORST = {
    "nothing": [0] * 8,
    "one record": [0, 0, 1, 0, 0, 0, 1, 0],
    "one of each": [1] * 8,
    "more in one block than in the other": [9, 0, 0, 0, 0, 0, 0, 1],
    "nothing in one block": [0, 3, 0, 0, 0, 0, 0, 0],
    "a sum that overflows": [LARGEST] * 8,
    "negative in one block": [-1, 2, 0, 0, 0, 1, 0, 0],
    "cancels another": [-(10**9), 10**9 + 1, 0, 0, 0, -5, 6, 0],
    "alternating and growing": [(-7) ** power * 10**9 for power in range(8)],
    "least integers": [LEAST] * 8,
}
WORST = {name: np.array(row, dtype=np.int64) for name, row in WORST.items()}
_counts = st.one_of(st.integers(0, 5), st.integers(-3, 2**33), st.integers(LEAST, LARGEST), st.sampled_from([0, 2**32]))
_row = st.lists(_counts, min_size=8, max_size=8).map(lambda row: np.array(row, dtype=np.int64))


def _moved(corpus: list[Array], unit: Array) -> Array:
    without = SMALL.contribution(np.array(corpus, dtype=np.int64).reshape(-1, SMALL.cells))
    return SMALL.check(SMALL.contribution(np.stack([*corpus, unit]))) - SMALL.check(without)


def _bounded(moved: Array) -> bool:
    """Exact integers; 2 SCALE^2 is the square of the sensitivity."""
    sums = [sum(block.tolist()) for block in SMALL.split(moved)]
    return moved.min() >= 0 and max(sums) <= SCALE and sum(step * step for step in moved.tolist()) <= 2 * SCALE**2


@given(st.lists(_row, max_size=4), _row)
def test_one_more_unit_moves_the_sums_by_at_most_the_sensitivity(corpus: list[Array], unit: Array) -> None:
    assert _bounded(_moved(corpus, unit))


@pytest.mark.parametrize("unit", WORST.values(), ids=WORST)
def test_no_adversarial_unit_moves_the_sums_further(unit: Array) -> None:
    assert _bounded(_moved(list(WORST.values()), unit))
    assert _bounded(_moved([], unit))


@pytest.mark.parametrize("records", [1, 3, 2**32])
def test_the_bound_is_tight(records: int) -> None:
    unit = np.array([0, 0, records, 0, 0, 0, 0, records])
    moved = _moved([np.ones(8, dtype=np.int64)], unit)
    assert math.isclose(np.linalg.norm(moved.astype(float)), SMALL.sensitivity)
    assert math.isclose(SMALL.sensitivity, math.sqrt(2) * SCALE)


def test_units_add_up_in_any_order_and_in_any_pieces() -> None:
    counts = np.random.default_rng(0).integers(0, 9, (300, SMALL.cells))
    whole = SMALL.contribution(counts)
    assert np.array_equal(whole, SMALL.contribution(counts[::-1]))
    assert np.array_equal(whole, SMALL.contribution(counts[:7]) + SMALL.contribution(counts[7:]))


def test_shares_of_each_block_are_those_of_the_units() -> None:
    margins = Margins((4, 3), sigma=5.0)
    truth = np.array([0.6, 0.3, 0.1, 0.0, 0.5, 0.25, 0.25])
    shares = margins.to_shares(margins.draw((truth * 20_000 * SCALE).astype(np.int64)))
    assert [math.isclose(block.sum(), 1.0) for block in margins.split(shares)] == [True, True]
    assert np.abs(shares - truth).max() < 0.01
    assert shares.min() >= 0


def test_blocks_without_anybody_are_uniform() -> None:
    assert SMALL.to_shares(np.full(8, -SCALE)).tolist() == [1 / 5] * 5 + [1 / 3] * 3
    assert SMALL.to_shares(np.zeros(8, dtype=np.int64)).tolist() == [1 / 5] * 5 + [1 / 3] * 3


@given(st.lists(st.integers(-(10**9), 10**9), min_size=8, max_size=8))
def test_shares_are_the_nearest_ones(noisy: list[int]) -> None:
    """The optimality conditions of a projection on the simplex: what is positive was lowered by one number."""
    for block, shares in zip(SMALL.split(np.array(noisy)), SMALL.split(SMALL.to_shares(np.array(noisy))), strict=True):
        if block.sum() <= 0:
            assert np.allclose(shares, 1 / len(block))
            continue
        lowered = block / block.sum() - shares
        kept = shares > 1e-12
        assert np.ptp(lowered[kept]) < 1e-6 * max(1, np.abs(block / block.sum()).max())
        assert (lowered[~kept] <= lowered[kept].min() + 1e-6 * max(1, np.abs(block / block.sum()).max())).all()


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf, 1e10])
def test_impossible_noise_is_refused(sigma: float) -> None:
    with pytest.raises((ReleaseError, EventError)):
        Margins(BLOCKS, sigma)


def test_too_many_cells_empty_blocks_and_other_units_are_refused() -> None:
    with pytest.raises(ConfigError, match="1,001"):
        Margins((1000, 1), 1.0)
    with pytest.raises(ReleaseError, match="give each at least 1"):
        Margins((5, 0), 1.0)
    with pytest.raises(ReleaseError, match="users or records"):
        Margins(BLOCKS, 1.0, PrivacyUnit.PHRASE)


@pytest.mark.parametrize("counts", [np.zeros((2, 8)), np.zeros(8, dtype=int), np.zeros((2, 7), dtype=int)])
def test_what_is_no_table_of_counts_is_refused(counts: Array) -> None:
    with pytest.raises(ReleaseError, match="give whole numbers"):
        SMALL.contribution(counts)
