"""Votes, plain and centred on a public distribution: how far one teacher can move the sums, whatever it answers."""

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
from rayprivacy.release.votes import SCALE, VoteMechanism

VOTE = VoteMechanism(queries=1, candidates=CANDIDATES, teachers=4, sigma=3.0)
TOP1, CLIPPED = replace(VOTE, ballot="top1"), replace(VOTE, clip=0.3)
RADII = (0.001, 0.05, 0.2, 0.5, 0.7, 1.0, 1.5)
CENTRES: dict[str, Array] = {
    "uniform": np.full(CANDIDATES, 1 / CANDIDATES),
    "certain": np.eye(CANDIDATES)[0],
    "nothing": np.zeros(CANDIDATES),
    "sums to 1 + 9e-7": np.eye(CANDIDATES)[3] * (1 + 9e-7),
    "steep": 0.5 ** np.arange(1.0, CANDIDATES + 1),
}
every_ballot = pytest.mark.parametrize("ballot", ["distribution", "top1"])
every_kind = pytest.mark.parametrize("kind", [None, *RADII, "laplace"])


def _votes(kind, ballot, candidates=CANDIDATES):
    """Of a radius to which they are clipped, or none; or with Laplace noise."""
    how: Any = {"noise": "laplace"} if kind == "laplace" else {"clip": kind}
    return replace(VOTE, ballot=ballot, candidates=candidates, **how)


def _length(mechanism, moved):
    """In the norm in which its noise hides."""
    return np.linalg.norm(moved.astype(np.float64), 1 if mechanism.noise == "laplace" else 2, axis=-1)


def _centre(mechanism, centre):
    """For a mechanism that has one."""
    return None if mechanism.clip is None else centre


@every_ballot
@every_kind
@given(simplex, votes, votes, st.lists(votes, min_size=3, max_size=3))
def test_one_changed_teacher_moves_the_sum_by_at_most_the_sensitivity(kind, ballot, centre, before, after, others):
    mechanism = _votes(kind, ballot)
    public = _centre(mechanism, centre[None])
    blocks = [np.stack([changed, *others])[None] for changed in (before, after)]
    sums = [mechanism.summed(block, public) for block in blocks]
    assert _length(mechanism, sums[0] - sums[1]) <= mechanism.sensitivity
    for block, total in zip(blocks, sums, strict=True):
        mechanism.check(total)
        assert np.array_equal(total, mechanism.quantise(block, _centre(mechanism, centre)).sum(-2))


@every_ballot
@every_kind
@pytest.mark.parametrize("centre", CENTRES.values(), ids=CENTRES)
def test_no_pair_of_adversarial_votes_is_further_apart(centre, kind, ballot):
    mechanism = _votes(kind, ballot)
    ballots = mechanism.quantise(np.stack(list(WORST.values())), _centre(mechanism, centre))
    assert _length(mechanism, ballots[:, None] - ballots[None]).max() <= mechanism.sensitivity
    longest = (mechanism.clip or 1) * (1 + 1e-6) * SCALE + math.sqrt(CANDIDATES) / 2
    assert np.linalg.norm(ballots.astype(np.float64), axis=-1).max() <= longest


@every_ballot
@pytest.mark.parametrize(
    ("candidates", "kind"),
    [*((many, None) for many in (2, 50, 1000, 50_000)), (50, "laplace"), *((2, clip) for clip in RADII)],
)
def test_the_bound_is_tight(candidates, kind, ballot):
    """Between two candidates a deviation reaches 1/sqrt(2); beyond, two certain votes are sqrt(2) apart."""
    mechanism = _votes(kind, ballot, candidates)
    certain = mechanism.quantise(np.eye(2, candidates), _centre(mechanism, np.full(candidates, 1 / candidates)))
    apart = 2 if kind == "laplace" else min(2 * (mechanism.clip or 1), math.sqrt(2))
    assert 0.99 * apart * SCALE <= _length(mechanism, certain[0] - certain[1]) <= mechanism.sensitivity


def test_a_smaller_radius_needs_less_noise():
    plain, centred = VoteMechanism(1, 50, 1, 2.0), VoteMechanism(1, 50, 1, 2.0, clip=0.2)
    assert plain.noise_std_grid / centred.noise_std_grid == pytest.approx(math.sqrt(2) / 0.4, rel=1e-4)
    assert plain.event == centred.event
    for clip in (0.71, 1.0, 2.0):  # two distributions are never further apart than sqrt(2)
        assert replace(plain, clip=clip).sensitivity == plain.sensitivity


@given(simplex, simplex)
def test_a_deviation_is_what_it_is_within_the_radius_and_keeps_its_direction_beyond(centre, vote):
    wide, narrow = (replace(VOTE, clip=clip).quantise(vote, centre) / SCALE for clip in (1.5, 0.1))
    assert np.abs(wide - (vote - centre)).max() <= 0.5 / SCALE + 1e-15
    short = (vote - centre) * min(1, 0.1 / max(np.linalg.norm(vote - centre), 1e-12))
    assert np.abs(narrow - short).max() <= 2e-6


def test_a_top1_ballot_is_the_first_of_the_most_likely_candidates():
    rows = np.array([[0.1, 0.4, 0.4, 0.1, 0, 0, 0, 0], np.zeros(CANDIDATES)])
    assert (TOP1.quantise(rows) / SCALE).tolist() == np.eye(CANDIDATES)[[1, 0]].tolist()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1e-12, 1.1, 1e308])
def test_a_failing_teacher_votes_a_constant(bad):
    rows = np.tile(np.eye(CANDIDATES)[1], (3, 1))
    rows[1, 0] = bad
    for mechanism, constant in ((VOTE, SCALE // CANDIDATES), (TOP1, SCALE // CANDIDATES), (CLIPPED, 0)):
        quantised = mechanism.quantise(rows, _centre(mechanism, CENTRES["steep"]))
        assert quantised[1].tolist() == [constant] * CANDIDATES
        assert np.array_equal(quantised[0], quantised[2])
        assert quantised[0].any()


@pytest.mark.parametrize("mechanism", [VOTE, TOP1, CLIPPED], ids=["distribution", "top1", "centred"])
@given(simplex, st.lists(st.one_of(votes, simplex), min_size=2, max_size=6))
def test_sums_are_sums_of_ballots_and_float32_counts_as_the_float64_it_is(mechanism, centre, rows):
    public = _centre(mechanism, centre.astype(np.float32))
    with np.errstate(over="ignore"):
        single = np.stack(rows).astype(np.float32)
    kept = single.copy()
    ballots = mechanism.quantise(single, public)
    assert np.array_equal(ballots, mechanism.quantise(single.astype(np.float64), public))
    assert np.array_equal(ballots, np.stack([mechanism.quantise(row, public) for row in single]))
    summed = mechanism.summed(single[None], _centre(mechanism, centre.astype(np.float32)[None]))
    assert summed.dtype == ballots.dtype == np.int64
    assert np.array_equal(summed[0], ballots.sum(0))
    assert np.array_equal(single, kept, equal_nan=True)


def test_sums_of_very_many_teachers_are_exact():
    votes = np.broadcast_to(np.array([0.7, 0.1], dtype=np.float32), (300_000, 2))
    mechanism = VoteMechanism(1, 2, 300_000, 1.0)
    assert np.array_equal(mechanism.summed(votes), 300_000 * mechanism.quantise(votes[0]))


@pytest.mark.parametrize(("clip", "centre"), [(None, 0.0), (0.4, np.array([0.4, 0.4, 0.1, 0.1, 0]))])
def test_the_mean_is_unbiased(clip, centre):
    mechanism = VoteMechanism(queries=2000, candidates=5, teachers=100, sigma=2.0, clip=clip)
    truth = np.array([0.5, 0.25, 0.125, 0.125, 0.0])
    one = mechanism.quantise(np.broadcast_to(truth, (mechanism.queries, 5)), _centre(mechanism, centre))
    means = mechanism.to_mean(mechanism.draw(one * mechanism.teachers)) + centre
    z = (means.mean(0) - truth) / (mechanism.noise_std_grid / SCALE / mechanism.teachers / math.sqrt(len(means)))
    assert 2 * stats.norm.sf(np.abs(z).max()) > P_THRESHOLD / 5
    assert (means < 0).any()  # nothing is clipped


NO_CLIPS = (0.0, -0.1, 1e-9, 3.0, math.nan, math.inf, True, "0.2")
NO_SIGMAS = (0.0, -1.0, math.nan, math.inf, 1e10, 1e-9)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ballot": "top2"}, "ballot is 'top2'"),
        ({"noise": "uniform"}, "noise is 'uniform'"),
        ({"clip": 0.2, "noise": "laplace"}, "clip bounds the L2 norm; use noise 'gaussian'"),
        *(({"clip": clip}, "clip is") for clip in NO_CLIPS),
        *(({"sigma": sigma}, "") for sigma in NO_SIGMAS),
        *(({name: value}, "") for name in ("queries", "candidates", "teachers") for value in (0, True, 1.0, 2**31)),
    ],
)
def test_impossible_mechanisms_are_not_built(fields, message):
    with pytest.raises((ReleaseError, EventError), match=message):
        replace(VOTE, **fields)


def test_only_what_differs_from_the_first_version_is_a_parameter():
    assert set(VOTE.parameters) == {"mechanism", "scale", "queries", "candidates", "teachers", "sigma"}
    for fields in ({"ballot": "top1"}, {"clip": 0.2}, {"noise": "laplace"}, {"ballot": "top1", "noise": "laplace"}):
        assert replace(VOTE, **fields).parameters == {**VOTE.parameters, **fields}


NO_ENTRIES = (math.nan, math.inf, -0.1, 1.1)
NO_SHAPES = (CANDIDATES + 1, 1, (5, 1, CANDIDATES), (2, CANDIDATES))


@pytest.mark.parametrize(
    ("centre", "message"),
    [
        *((np.full(CANDIDATES, value), "no distribution") for value in NO_ENTRIES),
        *((np.zeros(shape), "centre has the shape") for shape in NO_SHAPES),
        (None, "centre and clip belong together"),
    ],
)
def test_centres_and_votes_of_another_shape_are_refused(centre, message):
    with pytest.raises(ReleaseError, match=message):
        CLIPPED.quantise(np.zeros((3, CANDIDATES)), centre)
    with pytest.raises(ReleaseError, match="centre and clip belong together"):
        VOTE.summed(np.zeros((1, 3, CANDIDATES)), np.zeros((1, CANDIDATES)))
    with pytest.raises(ReleaseError, match="last axis"):
        VOTE.quantise(np.zeros((3, CANDIDATES + 1)))
    with pytest.raises(ReleaseError, match="axis of teachers"):
        VOTE.summed(np.zeros(CANDIDATES))


@pytest.mark.parametrize("clip", RADII)
@pytest.mark.parametrize("sign", [-1, 1])
def test_sums_that_no_clipped_votes_add_up_to_are_refused(clip, sign):
    mechanism = replace(VOTE, teachers=5, clip=clip)
    least = 5 * (math.ceil(min(clip, 1) * SCALE * (1 + 1e-6)) + 1)
    mechanism.check(np.full((1, CANDIDATES), sign * least))
    with pytest.raises(ReleaseError, match="5 quantised votes"):
        mechanism.check(np.full((1, CANDIDATES), sign * (least + 1)))
