"""The vote mechanism: how far one teacher can move the sums."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from adversaries import CANDIDATES, P_THRESHOLD, WORST, Array, simplex, votes
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rayprivacy.core.errors import EventError, ReleaseError
from rayprivacy.release.votes import SCALE, BallotKind, VoteMechanism

VOTE = VoteMechanism(queries=1, candidates=CANDIDATES, teachers=4, sigma=3.0)
TOP1 = replace(VOTE, ballot="top1")


@pytest.mark.parametrize("mechanism", [VOTE, TOP1], ids=["distribution", "top1"])
@given(votes, votes, st.lists(votes, min_size=3, max_size=3))
def test_one_changed_teacher_moves_the_sum_by_at_most_the_sensitivity(
    mechanism: VoteMechanism, before: Array, after: Array, others: list[Array]
) -> None:
    sums = [mechanism.summed(np.stack([changed, *others])[None]) for changed in (before, after)]
    assert np.linalg.norm((sums[0] - sums[1]).astype(np.float64)) <= mechanism.sensitivity
    for total in sums:
        mechanism.check(total)


@pytest.mark.parametrize("ballot", ["distribution", "top1"])
@pytest.mark.parametrize("before", WORST.values(), ids=WORST)
def test_no_pair_of_adversarial_votes_is_further_apart(ballot: BallotKind, before: Array) -> None:
    mechanism = VoteMechanism(1, CANDIDATES, 1, 1.0, ballot=ballot)
    moved = mechanism.quantise(np.stack(list(WORST.values()))) - mechanism.quantise(before)
    assert np.linalg.norm(moved.astype(np.float64), axis=-1).max() <= mechanism.sensitivity


@pytest.mark.parametrize("ballot", ["distribution", "top1"])
@pytest.mark.parametrize("candidates", [2, 50, 1000, 50_000])
def test_the_bound_is_tight(candidates: int, ballot: BallotKind) -> None:
    mechanism = VoteMechanism(1, candidates, 1, 1.0, ballot=ballot)
    first, second = np.zeros((2, candidates))
    first[0] = second[1] = 1.0
    moved = np.linalg.norm((mechanism.quantise(first) - mechanism.quantise(second)).astype(np.float64))
    assert 0.99 * mechanism.sensitivity <= moved <= mechanism.sensitivity


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1e-12, 1.1, 1e308])
def test_a_failing_teacher_votes_a_constant(bad: float) -> None:
    rows = np.tile(np.eye(CANDIDATES)[1], (3, 1))
    rows[1, 0] = bad
    for mechanism in (VOTE, TOP1):
        quantised = mechanism.quantise(rows)
        assert quantised[1].tolist() == [SCALE // CANDIDATES] * CANDIDATES
        assert np.array_equal(quantised[0], quantised[2])


def test_a_top1_ballot_is_the_first_of_the_most_likely_candidates() -> None:
    rows = np.array([[0.1, 0.4, 0.4, 0.1, 0, 0, 0, 0], np.zeros(CANDIDATES)])
    assert (TOP1.quantise(rows) / SCALE).tolist() == np.eye(CANDIDATES)[[1, 0]].tolist()


@pytest.mark.parametrize("mechanism", [VOTE, TOP1], ids=["distribution", "top1"])
@given(st.lists(st.one_of(votes, simplex), min_size=2, max_size=6))
def test_sums_are_sums_of_ballots_and_float32_counts_as_the_float64_it_is(
    mechanism: VoteMechanism, rows: list[Array]
) -> None:
    with np.errstate(over="ignore"):
        single = np.stack(rows).astype(np.float32)
    ballots = mechanism.quantise(single)
    assert np.array_equal(ballots, mechanism.quantise(single.astype(np.float64)))
    assert np.array_equal(ballots, np.stack([mechanism.quantise(row) for row in single]))
    summed = mechanism.summed(single)
    assert summed.dtype == ballots.dtype == np.int64
    assert np.array_equal(summed, ballots.sum(0))


def test_quantising_leaves_the_votes_as_they_were() -> None:
    rows = np.stack(list(WORST.values())).astype(np.float32)
    before = rows.copy()
    for mechanism in (VOTE, TOP1):
        mechanism.summed(rows)
    assert np.array_equal(rows, before, equal_nan=True)


def test_sums_of_very_many_teachers_are_exact() -> None:
    votes = np.broadcast_to(np.array([0.7, 0.1], dtype=np.float32), (300_000, 2))
    mechanism = VoteMechanism(1, 2, 300_000, 1.0)
    assert np.array_equal(mechanism.summed(votes), 300_000 * mechanism.quantise(votes[0]))


def test_the_mean_is_unbiased() -> None:
    mechanism = VoteMechanism(queries=2000, candidates=5, teachers=100, sigma=2.0)
    truth = np.array([0.5, 0.25, 0.125, 0.125, 0.0])
    one = mechanism.quantise(np.broadcast_to(truth, (mechanism.queries, 5)))
    means = mechanism.to_mean(mechanism.draw(one * mechanism.teachers))
    z = (means.mean(0) - truth) / (mechanism.noise_std_grid / SCALE / mechanism.teachers / math.sqrt(len(means)))
    assert 2 * stats.norm.sf(np.abs(z).max()) > P_THRESHOLD / 5
    assert (means < 0).any()  # nothing is clipped


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ballot": "top2"}, "ballot is 'top2'"),
        ({"noise": "uniform"}, "noise is 'uniform'"),
        ({"clip": 0.2, "noise": "laplace"}, "clip bounds the L2 norm; use noise 'gaussian'"),
        *(({"clip": clip}, "clip is") for clip in (0.0, -0.1, 1e-9, 3.0, math.nan, math.inf, True, "0.2")),
    ],
)
def test_ballot_clip_and_noise_must_go_together(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ReleaseError, match=message):
        replace(VOTE, **fields)


def test_only_what_differs_from_the_first_version_is_a_parameter() -> None:
    first = {"mechanism", "scale", "queries", "candidates", "teachers", "sigma"}
    assert set(VOTE.parameters) == first
    for fields in ({"ballot": "top1"}, {"clip": 0.2}, {"noise": "laplace"}, {"ballot": "top1", "noise": "laplace"}):
        assert replace(VOTE, **fields).parameters == {**VOTE.parameters, **fields}


@pytest.mark.parametrize(
    "arguments",
    [(0, 2, 1, 1.0), (1, 0, 1, 1.0), (1, 2, 2**31, 1.0), (1, 2, True, 1.0), (1.0, 2, 1, 1.0)]
    + [(1, 2, 1, sigma) for sigma in (0.0, -1.0, math.nan, math.inf, 1e10, 1e-9)],
)
def test_impossible_mechanisms_are_not_built(arguments: tuple[Any, ...]) -> None:
    with pytest.raises((ReleaseError, EventError)):
        VoteMechanism(*arguments)


def test_votes_of_another_width_are_refused() -> None:
    with pytest.raises(ReleaseError, match="last axis"):
        VOTE.quantise(np.zeros((3, CANDIDATES + 1)))
    with pytest.raises(ReleaseError, match="axis of teachers"):
        VOTE.summed(np.zeros(CANDIDATES))
