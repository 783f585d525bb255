"""A total holds every teacher once, however late, doubled or shuffled its parts arrive."""

import gc
import itertools
import weakref

import numpy as np
import pytest

from rayprivacy.core.errors import ReleaseError
from rayprivacy.teachers.votes import PartialSum, VoteTotal


def _partial(pairs: tuple[int, ...], value: int | None = None) -> PartialSum:
    sums = np.random.default_rng(sum(pairs) if value is None else value).integers(0, 2**40, (3, 4))
    return PartialSum(tuple(teacher for pair in pairs for teacher in (2 * pair, 2 * pair + 1)), sums)


PARTS = [_partial((0,)), _partial((1, 2)), _partial((3,)), _partial((4, 5))]


def _total(parts: list[PartialSum]) -> VoteTotal:
    total = VoteTotal(3, 4)
    for part in parts:
        total.add(part)
    return total


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::5])
def test_any_order_gives_the_same_sums_and_manifest(order: tuple[int, ...]) -> None:
    total = _total([PARTS[i] for i in order])
    assert np.array_equal(total.sums, sum(part.sums for part in PARTS))
    assert total.sums.dtype == np.int64
    assert total.manifest == tuple(range(12))


def test_a_missing_part_shows_in_the_manifest_and_an_identical_repeat_is_counted_once() -> None:
    assert _total([PARTS[3], PARTS[0]]).manifest == (0, 1, 8, 9, 10, 11)
    assert VoteTotal(3, 4).manifest == ()
    once, twice = _total(PARTS), _total([*PARTS, _partial((1, 2)), PARTS[0]])
    assert np.array_equal(once.sums, twice.sums)
    assert once.manifest == twice.manifest


def test_a_differing_repeat_is_refused_and_not_added() -> None:
    total = _total(PARTS)
    before = total.sums.copy()
    with pytest.raises(ReleaseError, match="twice and differently") as caught:
        total.add(_partial((3,), value=99))
    assert not any(str(number) in str(caught.value) for number in PARTS[2].sums.flatten())
    assert np.array_equal(total.sums, before)
    assert total.manifest == tuple(range(12))


@pytest.mark.parametrize(
    "teachers",
    [(0, 1, 6, 7), (11, 18), (20, 20)],
    ids=["known teachers grouped anew", "a known teacher in new company", "a teacher twice in one sum"],
)
def test_a_teacher_is_never_counted_twice(teachers: tuple[int, ...]) -> None:
    total = _total(PARTS)
    before = total.sums.copy()
    with pytest.raises(ReleaseError, match="in two partial sums"):
        total.add(PartialSum(teachers, np.ones((3, 4), dtype=np.int64)))
    assert np.array_equal(total.sums, before)
    assert total.manifest == tuple(range(12))


def test_a_sum_of_another_shape_is_refused() -> None:
    for shape in ((1, 4), (4,)):
        with pytest.raises(ReleaseError):
            VoteTotal(3, 4).add(PartialSum((0, 1), np.ones(shape, dtype=np.int64)))


def test_a_total_is_a_summand_of_a_larger_one() -> None:
    lower, upper = _total(PARTS[:2]).partial, _total(PARTS[2:]).partial
    assert lower.teachers == (0, 1, 2, 3, 4, 5)
    whole = _total([upper, lower])
    assert np.array_equal(whole.sums, _total(PARTS).sums)
    assert whole.manifest == tuple(range(12))
    with pytest.raises(ReleaseError, match="in two partial sums"):
        whole.add(PARTS[1])


def test_a_total_changes_and_keeps_no_summand() -> None:
    part = _partial((0,))
    total, left, before = _total([part, PARTS[1]]), weakref.ref(part.sums), part.sums.copy()
    assert np.array_equal(before, _partial((0,)).sums)
    assert total.sums.any()
    del part
    gc.collect()
    assert left() is None
