"""Attacks on synthetic populations known in closed form, shadow models, and counts that flag too little noise alone."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Generator
from scipy import stats

from rayprivacy.accounting.gaussian import delta_of
from rayprivacy.auditing import membership
from rayprivacy.auditing.bounds import Counts, Profile, clopper_pearson, compare, counts_at, epsilon_lower_bound
from rayprivacy.auditing.membership import auc, calibrated, likelihood_ratio, operating_points, plain, shadow_attack
from rayprivacy.auditing.scoring import Read, Shadow, inside_of, shadow_scores
from rayprivacy.auditing.settings import AuditConfig
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.keys import Key

Array = np.ndarray[Any, Any]
EXAMPLES, SHADOWS, EFFECT, SPREAD = 4000, 64, 0.3, 0.2


class Population:
    """Losses = difficulty of the example - EFFECT if it was in + noise of the training."""

    def __init__(self, seed):
        draw = np.random.default_rng(seed)
        self.members = draw.random(EXAMPLES) < 0.5
        difficulty, spread = draw.normal(3, 1.0, size=EXAMPLES), SPREAD * draw.uniform(0.5, 1.5, size=EXAMPLES)

        def losses(members):
            return difficulty - EFFECT * members + spread * draw.normal(size=members.shape)

        self.losses, self.reference = losses(self.members), difficulty + 0.1 * draw.normal(size=EXAMPLES)
        # Each example is in half of every 16 shadow models, as Carlini et al. sample them.
        turns = draw.random((SHADOWS // 16, 16, EXAMPLES)).argsort(1)
        self.shadow_members = turns.reshape(SHADOWS, EXAMPLES) < 8
        self.shadow_losses = losses(self.shadow_members)

    def auc(self, scores):
        return auc(scores[self.members], scores[~self.members])


@pytest.fixture(scope="module")
def hard():
    return Population(1)


@pytest.mark.parametrize("distance", [0.0, 0.5, 1.0, 2.0])
def test_the_auc_of_two_gaussians_is_that_of_the_closed_form(distance):
    draw = np.random.default_rng(0)
    members, others = draw.normal(distance, size=20_000), draw.normal(size=20_000)
    expected = float(stats.norm.cdf(distance / math.sqrt(2)))
    assert auc(members, others) == pytest.approx(expected, abs=0.01)
    low, high = membership.auc_interval(members, others)
    assert low < expected < high
    assert high - low < 0.02


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_the_auc_counts_pairs_and_is_the_area_under_the_curve(first, second):
    members, others = np.array(first, float), np.array(second, float)
    pairs = (members[:, None] > others).mean() + (members[:, None] == others).mean() / 2
    assert auc(members, others) == pytest.approx(pairs)
    false, hits = membership.curve(members, others)
    assert (false[0], hits[0], false[-1], hits[-1]) == (0, 0, 1, 1)
    assert np.trapezoid(hits, false) == pytest.approx(pairs)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.floats(0.01, 0.99))
def test_false_alarms_stay_within_the_rate(scores, rate):
    others = np.array(scores, float)
    (point,) = operating_points(np.arange(10.0), others, (rate,))
    assert point.false_alarms <= rate * len(others) + 1e-9
    assert point.hits == sum(score > sorted(scores)[::-1][int(rate * len(scores) + 1e-9)] for score in range(10))


def test_an_exact_gaussian_mechanism_is_within_what_its_claim_admits():
    """Scores whose best attack is that of mu = 1: the admitted rate is above every interval's lower end."""
    draw, claim = np.random.default_rng(6), Profile.claimed(1.0, 0.126937)  # delta of mu = 1 at epsilon = 1
    exact, louder = (operating_points(draw.normal(mu, size=20_000), draw.normal(size=20_000)) for mu in (1, 3))
    assert all(point.interval[0] <= point.admitted(claim) <= 1 for point in exact)
    for point in exact[1:]:
        assert point.hit_rate == pytest.approx(stats.norm.cdf(stats.norm.ppf(point.rate) + 1), rel=0.15)
    assert louder[-1].interval[0] > louder[-1].admitted(claim)


@pytest.mark.parametrize("others", [40, 400])
def test_scores_that_tell_nothing_are_seldom_above_what_is_admitted(others):
    """The highest of a few others has more above it than one in a thousand: what is admitted has to allow for that."""
    draw, claim = np.random.default_rng(others), Profile.claimed(1.0, 0.126937)
    above = [0, 0, 0]
    for _ in range(200):
        for at, point in enumerate(operating_points(draw.normal(size=400), draw.normal(size=others))):
            above[at] += point.hit_rate > point.admitted(claim)
    assert max(above) <= 10


def test_the_likelihood_ratio_beats_the_plain_loss_where_examples_differ_in_difficulty(hard):
    shadows = (hard.losses, hard.shadow_losses, hard.shadow_members)
    plainly, calibrating = hard.auc(plain(hard.losses)), hard.auc(calibrated(hard.losses, hard.reference))
    online, offline = hard.auc(likelihood_ratio(*shadows)), hard.auc(membership.offline_ratio(*shadows))
    assert plainly == pytest.approx(stats.norm.cdf(EFFECT / math.sqrt(2 * (1 + SPREAD**2))), abs=0.03)
    assert plainly + 0.1 < calibrating < online
    assert plainly + 0.1 < offline <= online + 0.01


def test_the_shadow_attack_learns_to_calibrate(hard):
    """From loss and reference it learns their difference, which no single feature holds."""
    first, members = hard.shadow_losses[0], hard.shadow_members[0]
    both = [np.column_stack([losses, hard.reference]) for losses in (first, hard.losses)]
    learnt = shadow_attack(both[0], members, both[1])
    alone = shadow_attack(first[:, None], members, hard.losses[:, None])
    assert hard.auc(learnt) == pytest.approx(hard.auc(calibrated(hard.losses, hard.reference)), abs=0.02)
    assert hard.auc(alone) == pytest.approx(hard.auc(plain(hard.losses)), abs=0.01)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: auc(np.zeros(0), np.zeros(2)), "0 members and 2 others"),
        (lambda: operating_points(np.zeros(2), np.zeros(2), (1.0,)), "rate of false alarms is 1.0"),
        (lambda: likelihood_ratio(np.zeros(3), np.zeros((4, 2)), np.ones((4, 2), bool)), "3 examples"),
        (lambda: likelihood_ratio(np.zeros(2), np.zeros((4, 2)), np.ones((4, 2), bool)), "0 shadow models"),
        (lambda: shadow_attack(np.zeros((2, 1)), np.ones(2, bool), np.zeros((3, 1))), "same for all rows"),
        (lambda: shadow_attack(np.zeros((2, 1)), np.ones(2, bool), np.zeros((3, 2))), "2 features"),
    ],
)
def test_wrong_arrays_are_named(wrong, named):
    with pytest.raises(ConfigError, match=named):
        wrong()


KEY = Key.for_tests()
USERS = [f"user-{number}" for number in range(1000)]


def _shadows(count, key=KEY):
    return [Shadow(number, Path("model"), key) for number in range(count)]


def test_pairs_of_shadows_split_the_users_in_halves_of_their_own_and_by_the_key():
    inside, other = inside_of(_shadows(8), USERS), inside_of(_shadows(8, Key(b"x" * 32)), USERS)
    assert (inside.sum(0) == 4).all()
    assert (abs(inside.mean(1) - 0.5) < 0.06).all()
    assert (inside[0] != inside[1]).all()
    for second in (inside[2], other[0]):
        assert 0.4 < (inside[0] != second).mean() < 0.6


def _world(count, drop):
    """AUC of each attack, and of the plain loss, where members' losses are lower by `drop` and users differ by more."""
    draw = np.random.default_rng(5)
    inside = inside_of(_shadows(count), USERS)
    public = draw.normal(4.0, 1.0, len(USERS))
    member = np.arange(len(USERS)) < 500

    def losses(within):
        return public - drop * within + draw.normal(0, 0.1, within.shape)

    own = losses(member)
    read, *shadows = (Read(each, np.empty((len(each), 0))) for each in (own, *losses(inside)))
    scores = shadow_scores(read, public, shadows, inside)
    assert all(each.shape == own.shape for each in scores.values())
    by_loss = auc(plain(own)[member], plain(own)[~member])
    return {name: auc(each[member], each[~member]) for name, each in scores.items()}, by_loss


def test_attacks_with_shadows_find_members_that_the_loss_hides_and_nothing_where_there_is_nothing():
    found, by_loss = _world(16, drop=0.2)
    assert by_loss < 0.6
    assert set(found) == {"LiRA", "LiRA, offline", "shadow attack"}
    assert all(area > 0.85 for area in found.values()), found
    assert all(0.42 < area < 0.58 for area in _world(16, drop=0.0)[0].values())


@pytest.mark.parametrize("shadows", [1, 2, 3, 5])
def test_a_number_of_shadows_that_does_not_split_is_refused(shadows):
    with pytest.raises(ConfigError, match=f"'shadows' is {shadows}: give an even number, at least 4"):
        AuditConfig.parse({"shadows": shadows})
    assert [AuditConfig.parse({"shadows": taken}).shadows for taken in (0, 4, 6)] == [0, 4, 6]


TRIALS = 4000  # in each world
Noise = Callable[..., np.ndarray[Any, Any]]


CASES: dict[str, tuple[DpEvent, Noise, float]] = {
    **{f"gaussian {sigma:g}": (GaussianDpEvent(sigma), Generator.normal, sigma) for sigma in (0.5, 1.0, 2.0)},
    "laplace 1": (LaplaceDpEvent(1.0), Generator.laplace, 1.0),
}
NIGHTLY = ("gaussian 0.5", "gaussian 2")
PROFILES = {name: Profile.of([event]) for name, (event, _, _) in CASES.items()}


def _attacked(noise, scale, seed):
    """Three thresholds, fixed beforehand, on the output of a sum that has 1 more with the secret."""
    draw = np.random.default_rng(seed)
    with_secret, without_secret = (at + noise(draw, 0, scale, TRIALS) for at in (1, 0))
    return [counts_at(threshold, with_secret, without_secret) for threshold in (0.0, 0.5, 1.0)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.exhaustive] * (name in NIGHTLY)) for name in CASES]
)
def test_none_of_200_correct_runs_is_flagged_and_noise_1_5_times_too_small_is_in_9_of_10(name):
    _, noise, scale = CASES[name]
    assert sum(compare(PROFILES[name], _attacked(noise, scale, seed)).flagged for seed in range(200)) == 0
    found = sum(compare(PROFILES[name], _attacked(noise, scale / 1.5, seed)).flagged for seed in range(10))
    assert found >= 9


def test_sampled_steps_are_compared_with_the_sampled_curve():
    """A secret that always takes part is found against a claim of coins, and the coins themselves are not."""
    profile = Profile.of([PoissonSampledDpEvent(0.3, GaussianDpEvent(0.5))])

    def flagged(rate, seed):
        draw = np.random.default_rng(seed)
        with_secret = draw.normal(scale=0.5, size=TRIALS) + (draw.random(TRIALS) < rate)
        return compare(profile, [counts_at(0.5, with_secret, draw.normal(scale=0.5, size=TRIALS))]).flagged

    assert not any(flagged(0.3, seed) for seed in range(30))
    assert all(flagged(1.0, seed) for seed in range(10))


@given(st.floats(0.2, 5), st.floats(0.001, 0.999))
def test_the_profile_of_a_gaussian_bounds_the_best_attack_and_nearly_meets_it(sigma, false):
    profile = Profile.of([GaussianDpEvent(sigma)])
    best = float(stats.norm.cdf(stats.norm.ppf(false) + 1 / sigma))
    assert best - 1e-9 <= profile.most_hits(false) <= best + 0.02
    assert all(delta_of(1 / sigma, eps) <= delta + 1e-12 for eps, delta in profile.points)
    composed = Profile.of([SelfComposedDpEvent(GaussianDpEvent(sigma * 10), 100)])
    assert np.allclose(profile.points, composed.points, atol=1e-9)


@given(st.integers(1, 60), st.data(), st.sampled_from([0.9, 0.99]))
def test_the_intervals_cover_the_true_rate_as_often_as_they_say(trials, data, confidence):
    rate = data.draw(st.floats(1e-6, 1 - 1e-6))
    ends = [clopper_pearson(successes, trials, confidence) for successes in range(trials + 1)]
    missing = [not low <= rate <= high for low, high in ends]
    assert stats.binom.pmf(np.arange(trials + 1), trials, rate)[missing].sum() <= 1 - confidence + 1e-9


@given(st.integers(0, 500), st.integers(0, 500), st.floats(0, 0.2))
def test_the_bound_on_epsilon_agrees_with_the_comparison(hits, false, delta):
    """The largest claim that the counts refute is the bound."""
    counts = Counts(hits, 500, false, 500)
    bound = epsilon_lower_bound(counts, delta, 0.99)
    assert not compare(Profile.claimed(bound + 1e-9, delta), [counts], 0.99).flagged
    if bound > 1e-6:
        assert compare(Profile.claimed(bound * (1 - 1e-6), delta), [counts], 0.99).flagged


def test_the_bound_stays_below_the_true_epsilon_of_randomised_response_and_comes_near():
    draw, true = np.random.default_rng(0), 1.5
    truthful = math.exp(true) / (1 + math.exp(true))
    bounds = []
    for _ in range(100):
        counts = Counts(int(draw.binomial(5000, truthful)), 5000, int(draw.binomial(5000, 1 - truthful)), 5000)
        bounds.append(epsilon_lower_bound(counts, 0.0, 0.95))
    assert sum(bound > true for bound in bounds) <= 5
    assert np.median(bounds) > true - 0.2


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: Counts(5, 4, 0, 4), "hits is 5"),
        (lambda: Counts(0, 0, 0, 4), "hits is 0 of 0"),
        (lambda: clopper_pearson(1, 2, 1.0), "confidence is 1.0"),
        (lambda: epsilon_lower_bound(Counts(1, 2, 1, 2), 1.0), "delta is 1.0"),
        (lambda: compare(Profile.claimed(1.0, 0.0), []), "attacks is empty"),
        (lambda: Profile(()), "no point"),
        (lambda: Profile.claimed(-1.0, 0.0), "epsilon -1.0"),
    ],
)
def test_wrong_numbers_are_named(wrong, named):
    with pytest.raises(ConfigError, match=named):
        wrong()
