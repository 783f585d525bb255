"""The least noise for a budget, also Laplace noise and its event, and the number of queries for a target."""

import numpy as np
import pytest
from dp_accounting.dp_event import LaplaceDpEvent, SelfComposedDpEvent
from dp_accounting.pld import privacy_loss_distribution as pld

from rayprivacy.accounting.accountant import epsilon
from rayprivacy.core.errors import ConfigError, EventError
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.least_noise import gaussian_noise, laplace_noise
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.seqpate.plan import most_queries, noise_on_mean
from rayprivacy.release.votes import SCALE, VoteMechanism

BUDGET = Budget(3.0, 1e-6)


def _noise_of(clip=None, teachers=1000):
    def noise(queries):
        return noise_on_mean(VoteMechanism(queries, 50, teachers, gaussian_noise(queries, BUDGET, "gdp"), clip=clip))

    return noise


@pytest.mark.parametrize("target", [0.005, 0.01, 0.037, 0.1])
def test_one_query_more_would_exceed_the_target(target):
    mechanism, noise_of = VoteMechanism(queries=300, candidates=50, teachers=1000, sigma=26.0), _noise_of()
    assert noise_on_mean(mechanism) == mechanism.sigma * mechanism.sensitivity / (SCALE * 1000)
    queries = most_queries(noise_of, target, 10**6)
    assert noise_of(queries) <= target < noise_of(queries + 1)
    assert most_queries(noise_of, target, queries - 1) == queries - 1  # no more than there is a use for


def test_a_smaller_clip_or_more_teachers_answer_more_queries():
    plain = most_queries(_noise_of(), 0.02, 10**6)
    assert most_queries(_noise_of(clip=0.2), 0.02, 10**6) > 12 * plain  # (sqrt(2) / 0.4)^2
    assert most_queries(_noise_of(teachers=2000), 0.02, 10**6) == pytest.approx(4 * plain, abs=4)


@pytest.mark.parametrize(("target", "most"), [(0.0, 10), (-1.0, 10), (float("nan"), 10), (0.1, 0), (0.1, True)])
def test_bad_arguments_and_targets_out_of_reach_are_refused(target, most):
    with pytest.raises(ConfigError, match="give a"):
        most_queries(_noise_of(), target, most)
    with pytest.raises(ConfigError, match=r"is 0\.0001 and one query alone has 0\.00\d+: take more teachers, a larger"):
        most_queries(_noise_of(), 1e-4, 100)


@pytest.mark.parametrize("parts", [(0.5, 0.5), (0.9, 0.1), (0.4, 0.3, 0.2, 0.1)])
@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 5.0])
def test_a_shift_spread_over_candidates_costs_no_more_than_in_one(noise_multiplier, parts):
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
def test_the_least_noise_fits_the_budget_and_a_little_less_does_not(queries, composition):
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
def test_what_has_no_least_noise_is_refused(queries, rule, message):
    with pytest.raises(ConfigError, match=message):
        laplace_noise(queries, BUDGET, rule)


def test_a_zcdp_account_takes_laplace_votes_and_a_gdp_account_does_not(tmp_path):
    mechanism = VoteMechanism(40, 50, 1000, laplace_noise(40, BUDGET, "zcdp"), noise="laplace")
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    for composition in ("zcdp", "gdp"):
        ledger.ensure_account(composition, PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, BUDGET, composition)
    ledger.reserve("zcdp", "votes", "digest", mechanism.event, protection=mechanism.protection)
    assert len(ledger.charges_of("zcdp", "votes")) == 1
    with pytest.raises(EventError, match="Gaussian events only"):
        ledger.reserve("gdp", "votes", "digest", mechanism.event, protection=mechanism.protection)
