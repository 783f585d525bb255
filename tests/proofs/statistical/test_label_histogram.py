"""The label histogram and margins: how far one unit can move the sums of one partition, or of several."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.core.errors import ConfigError, EventError, ReleaseError
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.release.histogram import MAX_CELLS, SCALE, HistogramMechanism, Margins

CELLS = 8
BLOCKS = (5, 3)
Mechanism = HistogramMechanism | Margins
SMALL, MARGINS = HistogramMechanism(CELLS, sigma=3.0), Margins(BLOCKS, sigma=3.0)
of_both = pytest.mark.parametrize("mechanism", [SMALL, MARGINS], ids=["histogram", "margins"])

LARGEST, LEAST = 2**63 - 1, -(2**63)
ROWS = {
    "nothing": [0] * 8,
    "one record": [0, 0, 0, 1] + [0] * 4,
    "one record in each block": [0, 0, 1, 0, 0, 0, 1, 0],
    "sevenths": [1] * 7 + [0],
    "one and a billion": [1] + [10**9] * 7,
    "a billion and ones": [10**9] + [1] * 7,
    "more in one block than in the other": [9] + [0] * 6 + [1],
    "the most that counts": [2**32] * 8,
    "one more than that": [2**32 + 1] * 8,
    "a sum that overflows": [LARGEST] * 8,
    "a product that overflows": [2**43] + [0] * 7,
    "one huge, one small": [2**62, 1] + [0] * 6,
    "negative in one block": [-1, 2, 0, 0, 0, 1, 0, 0],
    "cancels another": [-(10**9), 10**9 + 1, 0, 0, 0, -5, 6, 0],
    "alternating and growing": [(-7) ** power * 10**9 for power in range(8)],
    "least integers": [LEAST] * 8,
}
WORST = {name: np.array(row, dtype=np.int64) for name, row in ROWS.items()}

_counts = st.one_of(
    st.integers(0, 5), st.integers(-3, 2**33), st.integers(LEAST, LARGEST), st.sampled_from([0, 1, 2**32])
)
_row = st.lists(_counts, min_size=CELLS, max_size=CELLS).map(lambda row: np.array(row, dtype=np.int64))


def _moved(mechanism, corpus, unit):
    with_it = mechanism.contribution(np.stack([*corpus, unit]))
    without = mechanism.contribution(np.array(corpus, dtype=np.int64).reshape(-1, mechanism.cells))
    return mechanism.check(with_it) - mechanism.check(without)


def _bounded(mechanism, moved):
    """In exact integers: each block by SCALE in sum, hence in L2, and m blocks by the root of m SCALE^2."""
    blocks = mechanism.split(moved) if isinstance(mechanism, Margins) else [moved]
    squared = sum(step * step for step in moved.tolist())
    return (
        moved.min() >= 0
        and max(sum(block.tolist()) for block in blocks) <= SCALE
        and squared <= len(blocks) * SCALE**2 == round(mechanism.sensitivity**2)
    )


@of_both
@given(st.lists(_row, max_size=4), _row)
def test_one_more_unit_moves_the_sums_by_at_most_the_sensitivity(mechanism, corpus, unit):
    assert _bounded(mechanism, _moved(mechanism, corpus, unit))


@of_both
@pytest.mark.parametrize("unit", WORST.values(), ids=WORST)
def test_no_adversarial_unit_moves_the_sums_further(mechanism, unit):
    assert _bounded(mechanism, _moved(mechanism, list(WORST.values()), unit))
    assert _bounded(mechanism, _moved(mechanism, [], unit))


def test_every_kind_of_whole_number_counts_alike():
    row = np.array([[0, 1, 2, 3, 4, 100, 0, 0]])
    for dtype in (np.int8, np.uint8, np.int32, np.uint64):
        assert np.array_equal(SMALL.contribution(row.astype(dtype)), SMALL.contribution(row))
    assert not SMALL.contribution(np.full((1, CELLS), np.iinfo(np.uint64).max, dtype=np.uint64)).any()


@pytest.mark.parametrize("cells", [1, 7, 1000])
def test_many_small_cells_do_not_round_up_above_the_bound(cells):
    mechanism = HistogramMechanism(cells, 1.0)
    for dominant in (1, 10, 2 * SCALE - cells, 10**9):
        row = np.ones(cells, dtype=np.int64)
        row[0] = dominant
        assert _bounded(mechanism, _moved(mechanism, [], row))


@pytest.mark.parametrize("records", [1, 3, 2**32])
@pytest.mark.parametrize("mechanism", [*(HistogramMechanism(cells, 1.0) for cells in (1, 50, 1000)), MARGINS])
def test_the_bound_is_tight(mechanism, records):
    blocks = mechanism.blocks if isinstance(mechanism, Margins) else (mechanism.cells,)
    unit = np.concatenate([np.eye(cells, dtype=np.int64)[-1] * records for cells in blocks])
    moved = _moved(mechanism, [np.ones(mechanism.cells, dtype=np.int64)], unit)
    assert math.isclose(np.linalg.norm(moved.astype(float)), mechanism.sensitivity)
    assert math.isclose(mechanism.sensitivity, math.sqrt(len(blocks)) * 2**20)


def test_a_unit_weighs_the_same_however_much_it_wrote():
    few, many = np.array([[1, 3, 0, 0, 0, 0, 0, 0]]), np.array([[1000, 3000, 0, 0, 0, 0, 0, 0]])
    assert (
        SMALL.contribution(few).tolist() == SMALL.contribution(many).tolist() == [SCALE // 4, SCALE * 3 // 4, *[0] * 6]
    )


def test_cells_below_two_standard_deviations_are_empty_and_shares_of_nobody_uniform():
    step = round(SMALL.noise_std_grid)
    noisy = np.array([2 * step - 1, 2 * step, 6 * step, -9 * step, 0, 0, 0, 0])
    assert SMALL.to_shares(noisy).tolist() == [0, 0.25, 0.75, 0, 0, 0, 0, 0]
    for nobody in (np.zeros(CELLS), np.full(CELLS, -SCALE)):
        assert SMALL.to_shares(nobody).tolist() == [1 / CELLS] * CELLS
        assert MARGINS.to_shares(nobody).tolist() == [1 / 5] * 5 + [1 / 3] * 3


@given(st.lists(st.integers(-(10**9), 10**9), min_size=CELLS, max_size=CELLS))
def test_shares_of_a_block_are_the_nearest_ones(noisy):
    """The optimality conditions of a projection on the simplex: what is positive was lowered by one number."""
    sides = MARGINS.split(np.array(noisy)), MARGINS.split(MARGINS.to_shares(np.array(noisy)))
    for block, shares in zip(*sides, strict=True):
        if block.sum() <= 0:
            assert np.allclose(shares, 1 / len(block))
            continue
        scaled = block / block.sum()
        lowered, kept, slack = scaled - shares, shares > 1e-12, 1e-6 * max(1, np.abs(scaled).max())
        assert np.ptp(lowered[kept]) < slack
        assert (lowered[~kept] <= lowered[kept].min() + slack).all()


NO_NOISE = (0.0, -1.0, math.nan, math.inf, 1e10, 1e-9)
REFUSED = (ConfigError, EventError, ReleaseError)


@pytest.mark.parametrize(
    ("mechanism", "arguments", "message"),
    [
        *((HistogramMechanism, (2, sigma), "") for sigma in NO_NOISE),
        *((Margins, (BLOCKS, sigma), "") for sigma in NO_NOISE),
        (HistogramMechanism, (MAX_CELLS + 1, 1.0), r"^codes\.values makes 1,001 combinations.*fewer labels or values"),
        (HistogramMechanism, (0, 1.0), "makes 0 combinations"),
        (Margins, ((1000, 1), 1.0), "1,001"),
        (Margins, ((5, 0), 1.0), "give each at least 1"),
        (HistogramMechanism, (2, 1.0, PrivacyUnit.PHRASE), r"unit is 'phrase'.*users or records"),
        (Margins, (BLOCKS, 1.0, PrivacyUnit.PHRASE), "users or records"),
    ],
)
def test_impossible_mechanisms_are_refused(mechanism, arguments, message):
    with pytest.raises(REFUSED, match=message):
        mechanism(*arguments)


@of_both
@pytest.mark.parametrize("counts", [np.zeros((2, CELLS)), np.zeros(CELLS, dtype=int), np.zeros((2, 3), dtype=int)])
def test_what_is_no_table_of_counts_is_refused(mechanism, counts):
    with pytest.raises(ReleaseError, match="give whole numbers"):
        mechanism.contribution(counts)
