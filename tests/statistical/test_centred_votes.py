"""Centred votes: deviations from a public distribution, clipped in L2, need noise for min(2r, sqrt 2) only."""

import math
from typing import Any

import numpy as np
import pytest
from adversaries import CANDIDATES, P_THRESHOLD, WORST, Array, simplex, votes
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rayprivacy.core.errors import ReleaseError
from rayprivacy.release.votes import SCALE, BallotKind, VoteMechanism

RADII = (0.001, 0.05, 0.2, 0.5, 0.7, 1.0, 1.5)
CENTRES: dict[str, Array] = {
    "uniform": np.full(CANDIDATES, 1 / CANDIDATES),
    "certain": np.eye(CANDIDATES)[0],
    "nothing": np.zeros(CANDIDATES),
    "sums to 1 + 9e-7": np.eye(CANDIDATES)[3] * (1 + 9e-7),
    "steep": 0.5 ** np.arange(1.0, CANDIDATES + 1),
}
PAIR = np.array([0.5, 0.5])


def _mechanism(clip: float, ballot: BallotKind = "distribution", teachers: int = 1) -> VoteMechanism:
    return VoteMechanism(1, CANDIDATES, teachers, 1.0, ballot=ballot, clip=clip)


@pytest.mark.parametrize("ballot", ["distribution", "top1"])
@pytest.mark.parametrize("clip", RADII)
@pytest.mark.parametrize("centre", CENTRES.values(), ids=CENTRES)
def test_no_pair_of_adversarial_votes_is_further_apart(centre: Array, clip: float, ballot: BallotKind) -> None:
    mechanism = _mechanism(clip, ballot)
    ballots = mechanism.quantise(np.stack(list(WORST.values())), centre).astype(np.float64)
    assert np.linalg.norm(ballots[:, None] - ballots[None], axis=-1).max() <= mechanism.sensitivity
    assert np.linalg.norm(ballots, axis=-1).max() <= (clip * (1 + 1e-6) * SCALE + math.sqrt(CANDIDATES) / 2)


@pytest.mark.parametrize("ballot", ["distribution", "top1"])
@pytest.mark.parametrize("clip", RADII)
@given(simplex, votes, votes, st.lists(votes, min_size=3, max_size=3))
def test_one_changed_teacher_moves_the_sum_by_at_most_the_sensitivity(
    clip: float, ballot: BallotKind, centre: Array, before: Array, after: Array, others: list[Array]
) -> None:
    mechanism = _mechanism(clip, ballot, teachers=4)
    blocks = [np.stack([changed, *others])[None] for changed in (before, after)]
    sums = [mechanism.summed(block, centre[None]) for block in blocks]
    assert np.linalg.norm((sums[0] - sums[1]).astype(np.float64)) <= mechanism.sensitivity
    for block, total in zip(blocks, sums, strict=True):
        mechanism.check(total)
        assert np.array_equal(total, mechanism.quantise(block, centre).sum(-2))


@pytest.mark.parametrize("clip", RADII)
def test_opposite_deviations_come_close_to_the_bound(clip: float) -> None:
    """Between two candidates a deviation reaches 1/sqrt(2); beyond, two certain votes are sqrt(2) apart."""
    mechanism = VoteMechanism(1, 2, 1, 1.0, clip=clip)
    ballots = mechanism.quantise(np.eye(2), PAIR)
    moved = float(np.linalg.norm((ballots[0] - ballots[1]).astype(np.float64)))
    assert 0.95 * min(2 * clip, math.sqrt(2)) * SCALE <= moved <= mechanism.sensitivity


def test_a_smaller_radius_needs_less_noise() -> None:
    plain, centred = VoteMechanism(1, 50, 1, 2.0), VoteMechanism(1, 50, 1, 2.0, clip=0.2)
    assert plain.noise_std_grid / centred.noise_std_grid == pytest.approx(math.sqrt(2) / 0.4, rel=1e-4)
    assert plain.event == centred.event
    for clip in (0.71, 1.0, 2.0):  # two distributions are never further apart than sqrt(2)
        assert VoteMechanism(1, 50, 1, 2.0, clip=clip).sensitivity == plain.sensitivity


@given(simplex, simplex)
def test_within_the_radius_the_deviation_is_what_it_is(centre: Array, vote: Array) -> None:
    ballot = _mechanism(1.5).quantise(vote, centre) / SCALE
    assert np.abs(ballot - (vote - centre)).max() <= 0.5 / SCALE + 1e-15


def test_beyond_the_radius_it_keeps_its_direction() -> None:
    ballot = VoteMechanism(1, 3, 1, 1.0, clip=0.1).quantise(np.array([1.0, 0, 0]), np.array([0.2, 0.4, 0.4])) / SCALE
    assert np.linalg.norm(ballot) == pytest.approx(0.1, abs=2e-6)
    assert ballot == pytest.approx(np.array([2, -1, -1]) * 0.1 / math.sqrt(6), abs=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1e-12, 1.1, 1e308])
def test_a_failing_teacher_does_not_deviate(bad: float) -> None:
    rows = np.tile(np.eye(CANDIDATES)[1], (3, 1))
    rows[1, 0] = bad
    ballots = _mechanism(0.3).quantise(rows, CENTRES["steep"])
    assert ballots[1].tolist() == [0] * CANDIDATES
    assert np.array_equal(ballots[0], ballots[2])
    assert ballots[0].any()


@given(st.lists(votes, min_size=1, max_size=5), simplex)
def test_float32_counts_as_the_float64_it_is(rows: list[Array], centre: Array) -> None:
    mechanism = _mechanism(0.2)
    with np.errstate(over="ignore"):
        single, public = np.stack(rows).astype(np.float32), centre.astype(np.float32)
    assert np.array_equal(mechanism.quantise(single, public), mechanism.quantise(single.astype(np.float64), public))


@pytest.mark.parametrize(
    ("centre", "message"),
    [
        (np.full(CANDIDATES, math.nan), "no distribution"),
        (np.eye(CANDIDATES)[0] * 1.1, "no distribution"),
        (np.eye(CANDIDATES)[0] - 0.1 * np.eye(CANDIDATES)[1], "no distribution"),
        (np.full(CANDIDATES, math.inf), "no distribution"),
        (np.zeros(CANDIDATES + 1), "centre has the shape"),
        (np.zeros(1), "centre has the shape"),
        (np.zeros((5, 1, CANDIDATES)), "centre has the shape"),
        (np.zeros((2, CANDIDATES)), "centre has the shape"),
        (None, "centre and clip belong together"),
    ],
)
def test_a_centre_that_is_none_is_refused(centre: Any, message: str) -> None:
    with pytest.raises(ReleaseError, match=message):
        _mechanism(0.2).quantise(np.zeros((3, CANDIDATES)), centre)


def test_a_centre_without_clip_is_refused() -> None:
    with pytest.raises(ReleaseError, match="centre and clip belong together"):
        VoteMechanism(1, CANDIDATES, 1, 1.0).summed(np.zeros((1, 3, CANDIDATES)), np.zeros((1, CANDIDATES)))


@pytest.mark.parametrize("clip", RADII)
@pytest.mark.parametrize("sign", [-1, 1])
def test_sums_that_no_clipped_votes_add_up_to_are_refused(clip: float, sign: int) -> None:
    mechanism = _mechanism(clip, teachers=5)
    least = 5 * (math.ceil(min(clip, 1) * SCALE * (1 + 1e-6)) + 1)
    mechanism.check(np.full((1, CANDIDATES), sign * least))
    with pytest.raises(ReleaseError, match="5 quantised votes"):
        mechanism.check(np.full((1, CANDIDATES), sign * (least + 1)))


def test_the_mean_deviation_plus_the_centre_is_the_mean_vote() -> None:
    mechanism = VoteMechanism(queries=2000, candidates=3, teachers=100, sigma=2.0, clip=0.4)
    centre, vote = np.array([0.4, 0.4, 0.2]), np.array([0.5, 0.2, 0.3])
    one = mechanism.quantise(np.broadcast_to(vote, (2000, 3)), centre)
    means = mechanism.to_mean(mechanism.draw(one * mechanism.teachers)) + centre
    z = (means.mean(0) - vote) / (mechanism.noise_std_grid / SCALE / mechanism.teachers / math.sqrt(len(means)))
    assert 2 * stats.norm.sf(np.abs(z).max()) > P_THRESHOLD / 3
