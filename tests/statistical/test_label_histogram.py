"""The label histogram: how far one unit can move the sums."""

import math
from typing import Any

import numpy as np
import pytest
from adversaries import Array
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.core.errors import ConfigError, EventError, ReleaseError
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.release.histogram import MAX_CELLS, SCALE, HistogramMechanism

CELLS = 8
SMALL = HistogramMechanism(CELLS, sigma=3.0)

LARGEST, LEAST = 2**63 - 1, -(2**63)
WORST = {
    "nothing": [0] * CELLS,
    "one record": [0, 0, 0, 1, 0, 0, 0, 0],
    "one of each": [1] * CELLS,
    "sevenths": [1] * 7 + [0],
    "one and a billion": [1] + [10**9] * 7,
    "a billion and ones": [10**9] + [1] * 7,
    "the most that counts": [2**32] * CELLS,
    "one more than that": [2**32 + 1] * CELLS,
    "a sum that overflows": [LARGEST] * CELLS,
    "a product that overflows": [2**43] + [0] * 7,
    "one huge, one small": [2**62, 1] + [0] * 6,
    "negative": [-1] * CELLS,
    "cancels another": [-(10**9), 10**9 + 1] + [0] * 6,
    "alternating and growing": [(-7) ** power * 10**9 for power in range(CELLS)],
    "least integers": [LEAST] * CELLS,
}
WORST = {name: np.array(row, dtype=np.int64) for name, row in WORST.items()}

_counts = st.one_of(
    st.integers(0, 5), st.integers(-3, 2**33), st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, 1, 2**32])
)
_row = st.lists(_counts, min_size=CELLS, max_size=CELLS).map(lambda row: np.array(row, dtype=np.int64))


def _moved(mechanism: HistogramMechanism, corpus: list[Array], unit: Array) -> Array:
    with_it = mechanism.contribution(np.stack([*corpus, unit]))
    without = mechanism.contribution(np.array(corpus, dtype=np.int64).reshape(-1, mechanism.cells))
    return mechanism.check(with_it) - mechanism.check(without)


def _bounded(mechanism: HistogramMechanism, moved: Array) -> bool:
    total = sum(moved.tolist())  # exact integers: the L2 norm of what is not negative is at most the sum
    squared = sum(step * step for step in moved.tolist())
    return moved.min() >= 0 and total <= SCALE and squared <= mechanism.sensitivity**2


@given(st.lists(_row, max_size=4), _row)
def test_one_more_unit_moves_the_sums_by_at_most_the_sensitivity(corpus: list[Array], unit: Array) -> None:
    assert _bounded(SMALL, _moved(SMALL, corpus, unit))


@pytest.mark.parametrize("unit", WORST.values(), ids=WORST)
def test_no_adversarial_unit_moves_the_sums_further(unit: Array) -> None:
    assert _bounded(SMALL, _moved(SMALL, list(WORST.values()), unit))
    assert _bounded(SMALL, _moved(SMALL, [], unit))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_every_kind_of_whole_number_counts_alike(dtype: Any) -> None:
    row = np.array([[0, 1, 2, 3, 4, 100, 0, 0]])
    assert np.array_equal(SMALL.contribution(row.astype(dtype)), SMALL.contribution(row))
    if np.iinfo(dtype).max > 2**32:
        assert not SMALL.contribution(np.full((1, CELLS), np.iinfo(dtype).max, dtype=dtype)).any()


@pytest.mark.parametrize("cells", [1, 7, 1000])
def test_many_small_cells_do_not_round_up_above_the_bound(cells: int) -> None:
    mechanism = HistogramMechanism(cells, 1.0)
    for dominant in (1, 10, 2 * SCALE - cells, 10**9):
        row = np.ones(cells, dtype=np.int64)
        row[0] = dominant
        assert _bounded(mechanism, _moved(mechanism, [], row))


@pytest.mark.parametrize("cells", [1, 50, 1000])
@pytest.mark.parametrize("records", [1, 3, 2**32])
def test_the_bound_is_tight(cells: int, records: int) -> None:
    mechanism = HistogramMechanism(cells, 1.0)
    moved = _moved(mechanism, [np.ones(cells, dtype=np.int64)], np.eye(cells, dtype=np.int64)[-1] * records)
    assert np.linalg.norm(moved.astype(float)) == mechanism.sensitivity == 2**20


def test_a_unit_weighs_the_same_however_much_it_wrote() -> None:
    few, many = np.array([[1, 3, 0, 0, 0, 0, 0, 0]]), np.array([[1000, 3000, 0, 0, 0, 0, 0, 0]])
    assert (
        SMALL.contribution(few).tolist() == SMALL.contribution(many).tolist() == [SCALE // 4, SCALE * 3 // 4, *[0] * 6]
    )


def test_units_add_up_in_any_order_and_in_any_pieces() -> None:
    counts = np.random.default_rng(0).integers(0, 9, (300, CELLS))
    whole = SMALL.contribution(counts)
    assert np.array_equal(whole, SMALL.contribution(counts[::-1]))
    assert np.array_equal(whole, SMALL.contribution(counts[:7]) + SMALL.contribution(counts[7:]))
    assert np.abs(whole.sum() - 300 * SCALE) < 300 * CELLS


def test_shares_follow_the_histogram_where_it_stands_out() -> None:
    mechanism = HistogramMechanism(4, sigma=5.0)
    truth = np.array([0.6, 0.3, 0.1, 0.0])
    shares = mechanism.to_shares(mechanism.draw((truth * 20_000 * SCALE).astype(np.int64)))
    assert shares.dtype == np.float64
    assert math.isclose(shares.sum(), 1.0)
    assert np.abs(shares - truth).max() < 0.01


def test_cells_below_two_standard_deviations_are_empty_and_none_is_negative() -> None:
    step = round(SMALL.noise_std_grid)
    noisy = np.array([2 * step - 1, 2 * step, 6 * step, -9 * step, 0, 0, 0, 0])
    assert SMALL.to_shares(noisy).tolist() == [0, 0.25, 0.75, 0, 0, 0, 0, 0]
    assert SMALL.to_shares(-abs(noisy)).tolist() == [1 / CELLS] * CELLS
    assert SMALL.to_shares(np.zeros(CELLS, dtype=np.int64)).tolist() == [1 / CELLS] * CELLS


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf, 1e10, 1e-9])
def test_impossible_noise_is_refused(sigma: float) -> None:
    with pytest.raises((ReleaseError, EventError)):
        HistogramMechanism(2, sigma)


def test_too_many_cells_and_other_units_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^codes\.values makes 1,001 combinations.*fewer labels or values"):
        HistogramMechanism(MAX_CELLS + 1, 1.0)
    with pytest.raises(ConfigError, match="makes 0 combinations"):
        HistogramMechanism(0, 1.0)
    with pytest.raises(ReleaseError, match=r"unit is 'phrase'.*users or records"):
        HistogramMechanism(2, 1.0, PrivacyUnit.PHRASE)


@pytest.mark.parametrize("counts", [np.zeros((2, CELLS)), np.zeros(CELLS, dtype=int), np.zeros((2, 3), dtype=int)])
def test_what_is_no_table_of_counts_is_refused(counts: Array) -> None:
    with pytest.raises(ReleaseError, match="give whole numbers"):
        SMALL.contribution(counts)
