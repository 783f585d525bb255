"""Sums of vectors for figures that may be published: how far one unit can move them, whatever it hands in."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.core.errors import EventError, ReleaseError
from rayprivacy.core.units import PrivacyUnit
from rayprivacy.release.figure_vectors import FigureVectors
from rayprivacy.release.votes import SCALE

CELLS = 6
SUMS = FigureVectors(CELLS, sigma=3.0)
EDGES = [0.0, 1.0, -1.0, 1e-9, 1e9, 1e200, -1e308, 5e-324, math.nextafter(1, 2), 2**-20, math.nan, math.inf, -math.inf]
WORST = {
    "nothing": [0.0] * CELLS,
    "one": [1.0] + [0.0] * (CELLS - 1),
    "as long as may be": [1 / math.sqrt(CELLS)] * CELLS,
    "a bit longer": [math.nextafter(1 / math.sqrt(CELLS), 1)] * CELLS,
    "alternating and growing": [(-1e3) ** power for power in range(CELLS)],
    "squares that overflow": [1e200, -1e200] * 3,
    "squares that vanish": [1e-200] * CELLS,
    "no number": [0.1, math.nan] * 3,
    "endless": [0.1, -math.inf] * 3,
    "cancels another": [-1 / math.sqrt(CELLS)] * CELLS,
}
_number = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(-2, 2), st.sampled_from(EDGES))
_vector = st.lists(_number, min_size=CELLS, max_size=CELLS)


def _sums(vectors):
    return SUMS.check(SUMS.contribution(np.array(vectors, dtype=np.float64).reshape(-1, CELLS)))


def _squared(moved):
    return sum(step * step for step in moved.tolist())


@given(st.lists(_vector, max_size=4), _vector, st.integers(0, 4))
def test_one_more_unit_moves_the_sums_by_its_own_bounded_vector(others, unit, place):
    moved = _sums([*others[:place], unit, *others[place:]]) - _sums(others)
    assert np.array_equal(moved, _sums([unit])), "the others add what they added"
    assert _squared(moved) <= SCALE**2 == SUMS.sensitivity**2


@pytest.mark.parametrize("unit", WORST.values(), ids=WORST)
def test_no_adversarial_unit_moves_the_sums_further(unit):
    assert _squared(_sums([*WORST.values(), unit]) - _sums([*WORST.values()])) <= SCALE**2


def test_a_vector_within_the_bound_is_kept_and_a_longer_one_keeps_its_direction():
    assert _sums([[0.5, -0.5, 0.25, 0, 0, 0]]).tolist() == [SCALE // 2, -SCALE // 2, SCALE // 4, 0, 0, 0]
    long = _sums([[30.0, -40.0, 0, 0, 0, 0]])
    assert np.allclose(long / SCALE, [0.6, -0.8, 0, 0, 0, 0], atol=1e-5)
    assert math.isclose(math.sqrt(_squared(long)), SUMS.sensitivity, rel_tol=1e-5), "the bound is tight"
    assert not _sums([WORST["no number"], WORST["endless"]]).any()


@pytest.mark.parametrize("vectors", [np.zeros(CELLS), np.zeros((2, CELLS - 1))])
def test_what_is_no_table_of_vectors_is_refused(vectors):
    with pytest.raises(ReleaseError, match="give numbers"):
        SUMS.contribution(vectors)


@pytest.mark.parametrize("sums", [np.zeros(CELLS), np.zeros(2, np.int64), np.full(CELLS, -(2**63), np.int64)])
def test_sums_of_no_units_are_refused(sums):
    with pytest.raises(ReleaseError):
        SUMS.check(sums)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(((2, sigma), "") for sigma in (0.0, -1.0, math.nan, math.inf)),
        ((0, 1.0), "take 0 numbers"),
        ((1001, 1.0), "take 1,001 numbers"),
        ((2, 1.0, PrivacyUnit.PHRASE), r"unit is 'phrase'.*users or records"),
    ],
)
def test_impossible_mechanisms_are_refused(arguments, message):
    with pytest.raises((EventError, ReleaseError), match=message or None):
        FigureVectors(*arguments)
