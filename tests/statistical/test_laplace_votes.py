"""Laplace noise on votes: L1 sensitivity, its event in the ledger, and the least noise for a budget."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adversaries import CANDIDATES, WORST, Array, votes
from dp_accounting.dp_event import LaplaceDpEvent, SelfComposedDpEvent
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given

from rayprivacy.accounting.accountant import epsilon
from rayprivacy.core.errors import ConfigError, EventError
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.least_noise import gaussian_noise, laplace_noise
from rayprivacy.ledger.store import Ledger
from rayprivacy.release.votes import BallotKind, VoteMechanism

BUDGET = Budget(3.0, 1e-6)
every_ballot = pytest.mark.parametrize("ballot", ["distribution", "top1"])


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


@pytest.mark.parametrize("parts", [(0.5, 0.5), (0.9, 0.1), (0.4, 0.3, 0.2, 0.1)])
@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 5.0])
def test_a_shift_spread_over_candidates_costs_no_more_than_in_one(
    noise_multiplier: float, parts: tuple[float, ...]
) -> None:
    """The event is that of ONE Laplace shifted by the whole sensitivity."""
    grid = 1e-4  # every loss may be rounded up by one step
    whole, joint, *others = (
        pld.from_laplace_mechanism(noise_multiplier / part, value_discretization_interval=grid) for part in (1, *parts)
    )
    for other in others:
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
