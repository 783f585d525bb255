"""Laplace noise on votes: L1 sensitivity, the real noise, its event in the ledger, and the least noise for a budget."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adversaries import CANDIDATES, P_THRESHOLD, WORST, Array, votes
from dp_accounting.dp_event import LaplaceDpEvent, SelfComposedDpEvent
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given
from scipy import stats

from rayprivacy.accounting.accountant import epsilon
from rayprivacy.core.errors import ConfigError, EventError
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.least_noise import gaussian_noise, laplace_noise
from rayprivacy.ledger.store import Ledger
from rayprivacy.release import noise
from rayprivacy.release.votes import SCALE, BallotKind, VoteMechanism

NOISE = VoteMechanism(queries=500, candidates=50, teachers=10, sigma=3.0, noise="laplace")
BUDGET = Budget(3.0, 1e-6)
every_ballot = pytest.mark.parametrize("ballot", ["distribution", "top1"])


def _draw() -> Array:
    return NOISE.draw(np.zeros((NOISE.queries, NOISE.candidates), dtype=np.int64)).ravel()


def _ks_p_value(drawn: Array, scale: float) -> float:
    return float(stats.kstest(drawn, stats.laplace(scale=scale).cdf).pvalue)


def _mechanism(ballot: BallotKind) -> VoteMechanism:
    return VoteMechanism(1, CANDIDATES, 1, 1.0, ballot=ballot, noise="laplace")


@every_ballot
def test_no_pair_of_adversarial_votes_is_further_apart(ballot: BallotKind) -> None:
    ballots = _mechanism(ballot).quantise(np.stack(list(WORST.values())))
    moved = np.abs(ballots[:, None] - ballots[None]).sum(-1).max()
    assert 0.99 * _mechanism(ballot).sensitivity <= moved <= _mechanism(ballot).sensitivity


@every_ballot
@given(votes, votes)
def test_one_changed_teacher_moves_the_sum_by_at_most_the_sensitivity(
    ballot: BallotKind, before: Array, after: Array
) -> None:
    mechanism = _mechanism(ballot)
    assert np.abs(mechanism.quantise(before) - mechanism.quantise(after)).sum() <= mechanism.sensitivity


def test_the_noise_has_the_declared_scale_and_shape() -> None:
    drawn = _draw()
    scale = 3.0 * (2 * (1 + 1e-6) * SCALE + 50)
    assert NOISE.noise_scale_grid == pytest.approx(scale)
    assert NOISE.noise_std_grid == pytest.approx(scale * math.sqrt(2))
    assert NOISE.event == SelfComposedDpEvent(LaplaceDpEvent(3.0), 500)
    assert _ks_p_value(drawn, scale) > P_THRESHOLD
    bins = np.bincount((stats.laplace.cdf(drawn / scale) * 50).astype(int), minlength=50)
    assert stats.chisquare(bins).pvalue > P_THRESHOLD
    assert _ks_p_value(np.random.default_rng(0).normal(size=drawn.size) * NOISE.noise_std_grid, scale) < P_THRESHOLD


@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_the_same_test_rejects_a_scale_30_percent_off(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    real = noise.add_discrete_laplace
    monkeypatch.setattr(noise, "add_discrete_laplace", lambda signal, scale: real(signal, scale * factor))
    assert _ks_p_value(_draw(), NOISE.noise_scale_grid) < P_THRESHOLD


def test_on_a_coarse_grid_the_noise_is_the_discrete_laplace() -> None:
    """Where the steps show: a chance like exp(-|n| / scale), so that no ratio exceeds exp(1 / scale) per step."""
    drawn = noise.add_discrete_laplace(np.zeros(100_000, dtype=np.int64), 2.0)
    ratio = math.exp(-0.5)
    expected = (1 - ratio) / (1 + ratio) * ratio ** np.abs(np.arange(-12, 13))
    counts = np.array([(drawn == n).sum() for n in range(-12, 13)])
    rest = len(drawn) - counts.sum()
    both = np.append(expected, 1 - expected.sum()) * len(drawn)
    assert stats.chisquare(np.append(counts, rest), both).pvalue > P_THRESHOLD


def test_draws_share_no_noise() -> None:
    first, second = (_draw().astype(float) for _ in range(2))
    for one, other in ((first, second), (first[:-50], first[50:]), (first[:-1], first[1:])):
        assert stats.pearsonr(one, other).pvalue > P_THRESHOLD


@pytest.mark.parametrize("parts", [(0.5, 0.5), (0.9, 0.1), (0.4, 0.3, 0.2, 0.1)])
@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 5.0])
def test_a_shift_spread_over_candidates_costs_no_more_than_in_one(
    noise_multiplier: float, parts: tuple[float, ...]
) -> None:
    """The event is that of ONE Laplace shifted by the whole sensitivity."""
    grid = 1e-4  # every loss may be rounded up by one step
    whole, *spread = (
        pld.from_laplace_mechanism(noise_multiplier / part, value_discretization_interval=grid) for part in (1, *parts)
    )
    joint = spread[0]
    for other in spread[1:]:
        joint = joint.compose(other)
    slack = grid * len(parts)
    for eps in np.linspace(slack, 1 / noise_multiplier, 11):
        assert joint.get_delta_for_epsilon(eps) <= whole.get_delta_for_epsilon(eps - slack)


@pytest.mark.parametrize("composition", ["zcdp", "rdp", "pld"])
@pytest.mark.parametrize("queries", [1, 300])
def test_the_least_noise_fits_the_budget_and_a_little_less_does_not(queries: int, composition: str) -> None:
    sigma = laplace_noise(queries, BUDGET, composition)
    event, less = (SelfComposedDpEvent(LaplaceDpEvent(s), queries) for s in (sigma, sigma * 0.999))
    assert epsilon([event], BUDGET.delta, "pld") <= BUDGET.epsilon
    if composition == "pld":
        assert epsilon([less], BUDGET.delta, "pld") > BUDGET.epsilon
    if composition == "zcdp":
        # One query of either has rho = 1 / (2 sigma^2).
        assert sigma == pytest.approx(gaussian_noise(queries, BUDGET, "zcdp"), rel=3e-4)
    else:
        assert sigma <= queries / BUDGET.epsilon * 1.1  # hardly ever worse than pure composition


WRONG_QUERIES = [(queries, "zcdp", "queries is") for queries in (0, -1, 1.5, True)]


@pytest.mark.parametrize(
    ("queries", "rule", "message"), [*WRONG_QUERIES, *((10, rule, "zcdp, rdp or pld") for rule in ("gdp", "metric"))]
)
def test_what_has_no_least_noise_is_refused(queries: Any, rule: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        laplace_noise(queries, BUDGET, rule)


def test_a_zcdp_account_takes_laplace_votes_and_a_gdp_account_does_not(tmp_path: Path) -> None:
    mechanism = VoteMechanism(40, 50, 1000, laplace_noise(40, BUDGET, "zcdp"), noise="laplace")
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    for composition in ("zcdp", "gdp"):
        ledger.ensure_account(composition, PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, BUDGET, composition)
    ledger.reserve("zcdp", "votes", "digest", mechanism.event, protection=mechanism.protection)
    assert len(ledger.charges_of("zcdp", "votes")) == 1
    with pytest.raises(EventError, match="Gaussian events only"):
        ledger.reserve("gdp", "votes", "digest", mechanism.event, protection=mechanism.protection)
