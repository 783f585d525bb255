"""Every composition rule admits up to its cap and no further, and refuses in a sentence while others go on."""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm
from timeouts import patience
from usual import TERMS, kinds, refused, reserve

from rayprivacy.accounting.events import MetricLocalDpEvent
from rayprivacy.core.errors import BudgetRefusedError, EventError
from rayprivacy.core.units import AccountKind
from rayprivacy.ledger.rules import SumRule
from rayprivacy.ledger.store import Ledger

EPSILON, DELTA, ORDER = 3.0, 1e-6, 16.0
SIGMA = 8.1375
TRAINING = PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0))


def _fits_gdp():
    """mu*^2 / mu^2, mu* from the closed curve of Gaussian noise."""
    curve = lambda mu: norm.cdf(mu / 2 - EPSILON / mu) - math.exp(EPSILON) * norm.cdf(-mu / 2 - EPSILON / mu)  # noqa: E731
    return float(brentq(lambda mu: curve(mu) - DELTA, 0.01, 10, xtol=1e-14)) ** 2 * SIGMA**2


def _fits_zcdp():
    """rho* / rho, by the conversion of Canonne, Kamath & Steinke at its best order."""

    def epsilon(rho):
        def at(a):
            return rho * a + math.log1p(-1 / a) - (math.log(DELTA) + math.log(a)) / (a - 1)

        return float(minimize_scalar(at, bounds=(1.01, 500), method="bounded", options={"xatol": 1e-10}).fun)

    return float(brentq(lambda rho: epsilon(rho) - EPSILON, 1e-6, 10, xtol=1e-15)) * 2 * SIGMA**2


def _fits_rdp():
    cap = EPSILON - math.log1p(-1 / ORDER) + (math.log(DELTA) + math.log(ORDER)) / (ORDER - 1)
    return cap / (ORDER / (2 * SIGMA**2))


METRIC = MetricLocalDpEvent(0.017, 1.3, 9)
RULES: dict[str, tuple[dict[str, Any], Any, float]] = {
    "gdp": ({}, GaussianDpEvent(SIGMA), _fits_gdp()),
    "zcdp": ({}, LaplaceDpEvent(SIGMA), _fits_zcdp()),
    "rdp": ({"order": ORDER}, GaussianDpEvent(SIGMA), _fits_rdp()),
    "metric": ({"kind": AccountKind.METRIC_LOCAL}, METRIC, EPSILON / (0.017 * 1.3 * 9)),
}


def _open(ledger, composition):
    more, event, fit = RULES[composition]
    ledger.create_account("a", *TERMS, composition, **more)
    assert 0.001 < fit % 1 < 0.999, "a test at the edge proves nothing"
    assert 5 < fit < 200
    return event, math.floor(fit)


def _reserve(ledger, release, event):
    return reserve(ledger, "a", f"run-{release}", event)


@pytest.mark.parametrize("composition", RULES)
def test_the_cap_is_reached_and_not_passed(ledger, composition):
    event, fit = _open(ledger, composition)
    charges = [_reserve(ledger, number, event) for number in range(fit)]
    full = ledger.status("a")
    assert full.share <= 1
    assert full.epsilon_spent <= EPSILON
    with pytest.raises(BudgetRefusedError, match="left"):
        _reserve(ledger, fit, event)
    with pytest.raises(BudgetRefusedError, match="left"):
        ledger.check("a", event, ledger.account("a").protection)
    assert ledger.status("a").balance == full.balance
    gone = charges[fit // 2]
    ledger.cancel(gone)
    used = ledger.status("a").balance.used
    assert used == tuple(all_ - one for all_, one in zip(full.balance.used, gone.cost, strict=True))
    ledger.check("a", event, ledger.account("a").protection)
    _reserve(ledger, fit, event)
    assert ledger.status("a").balance == full.balance
    assert ledger.verify().charges == fit + 1


@pytest.mark.parametrize(
    ("composition", "events"),
    [
        ("gdp", [*map(GaussianDpEvent, (math.nan, math.inf)), LaplaceDpEvent(5.0), TRAINING, METRIC]),
        ("gdp", [ComposedDpEvent([LaplaceDpEvent(1.0)])]),
        ("zcdp", [TRAINING, METRIC]),
        ("rdp", [METRIC]),
        ("metric", [GaussianDpEvent(5.0)]),
    ],
)
def test_an_event_that_the_rule_cannot_price_costs_nothing(ledger, composition, events):
    _open(ledger, composition)
    for event in events:
        with pytest.raises(EventError):
            _reserve(ledger, 0, event)
    assert kinds(ledger, "a") == ["create"]


class TestPlan:
    """Accounts of composition 'pld': nothing runs that was not planned, and no more of it."""

    PLAN = (SelfComposedDpEvent(TRAINING, 100), SelfComposedDpEvent(GaussianDpEvent(20.0), 3), LaplaceDpEvent(50.0))

    @pytest.fixture
    def planned(self, ledger):
        ledger.create_account("a", *TERMS, "pld")
        with pytest.raises(EventError, match="no plan yet"):
            _reserve(ledger, 0, TRAINING)
        assert 0.5 < ledger.register_plan("a", self.PLAN) < EPSILON
        return ledger

    def test_it_is_replaced_until_something_was_charged(self, planned, url):
        other = Ledger.open(url)  # has read no plan yet, or an earlier one, when it charges
        other.check("a", LaplaceDpEvent(50.0))
        planned.register_plan("a", self.PLAN[:2])
        with pytest.raises(EventError, match="neither in the account's plan"):
            _reserve(other, 0, LaplaceDpEvent(50.0))
        planned.register_plan("a", [LaplaceDpEvent(40.0), self.PLAN[1]])
        charge = _reserve(other, 0, LaplaceDpEvent(50.0))
        assert sum(charge.cost) == 1
        planned.cancel(charge)
        for again in (planned, other, Ledger.open(url)):
            refused("has a plan already", again.register_plan, "a", self.PLAN)
        assert kinds(planned, "a") == ["create", "plan", "plan", "plan", "reserve", "cancel"]
        planned.verify()

    @pytest.mark.parametrize("charged", [False, True])
    @pytest.mark.parametrize("covered", [False, True])
    def test_a_run_brings_its_own_plan_where_the_accounts_does_not_pay(self, planned, charged, covered):
        run = [GaussianDpEvent(25.0)] if covered else [GaussianDpEvent(15.0)]
        if charged:
            _reserve(planned, 0, LaplaceDpEvent(50.0))
        before = planned.terms("a").rule.lines
        planned.ensure_account("a", *TERMS, "pld", plan=run)
        replaced = not (covered or charged)
        assert planned.terms("a").rule.lines == (((run[0], 1),) if replaced else before)
        planned.verify()

    def test_a_plan_beyond_the_cap_replaces_none(self, planned):
        with pytest.raises(BudgetRefusedError, match="has a cap"):
            planned.ensure_account("a", *TERMS, "pld", plan=[GaussianDpEvent(0.5)])
        assert kinds(planned, "a") == ["create", "plan"]

    def test_what_cannot_be_a_plan_is_refused(self, planned):
        refused("only 'pld' accounts take a plan", planned.register_plan, "chat", self.PLAN)
        planned.create_account("b", *TERMS, "pld")
        for event in (METRIC, GaussianDpEvent(math.nan)):
            with pytest.raises(EventError):
                planned.register_plan("b", [event])
        assert planned.verify().entries == 4

    def test_the_least_costly_line_pays_first(self, ledger):
        """Lines of falling noise: a plan admits all of itself, whichever part is charged first."""
        steps = [PoissonSampledDpEvent(0.01, GaussianDpEvent(sigma)) for sigma in (2.0, 1.8, 1.62, 1.458)]
        plan = [SelfComposedDpEvent(steps[0], 8), *steps]
        ledger.create_account("a", *TERMS, "pld", plan=plan)
        for number, event in enumerate(plan):
            _reserve(ledger, number, event)
        with pytest.raises(BudgetRefusedError):
            _reserve(ledger, 9, steps[0])

    def test_what_is_planned_or_less_is_admitted(self, planned):
        cheaper = [
            *(TRAINING, SelfComposedDpEvent(TRAINING, 100), PoissonSampledDpEvent(0.005, GaussianDpEvent(1.0))),
            *(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.5)), GaussianDpEvent(20.0), GaussianDpEvent(50.0)),
            LaplaceDpEvent(60.0),
        ]
        for number, event in enumerate(cheaper):
            charge = _reserve(planned, number, event)
            assert sum(charge.cost) in (1, 100)
            planned.cancel(charge)
        assert planned.verify().charges == len(cheaper)

    def test_what_costs_more_than_any_line_is_refused(self, planned):
        dearer = [PoissonSampledDpEvent(q, GaussianDpEvent(sigma)) for q, sigma in ((0.011, 1.0), (0.01, 0.99))]
        for event in (GaussianDpEvent(19.9), *dearer, LaplaceDpEvent(49.0), METRIC):
            with pytest.raises(EventError, match="plan"):
                _reserve(planned, 0, event)
        assert kinds(planned, "a") == ["create", "plan"]

    def test_a_line_runs_no_more_often_than_planned(self, planned):
        laplace = [LaplaceDpEvent(50.0), LaplaceDpEvent(51.0)]
        charge = _reserve(planned, 0, laplace[0])
        for event in laplace:
            with pytest.raises(BudgetRefusedError):
                _reserve(planned, 1, event)
        planned.cancel(charge)
        _reserve(planned, 1, laplace[1])
        with pytest.raises(BudgetRefusedError):
            _reserve(planned, 2, SelfComposedDpEvent(TRAINING, 101))
        _reserve(planned, 2, SelfComposedDpEvent(TRAINING, 100))
        with pytest.raises(BudgetRefusedError):
            _reserve(planned, 3, TRAINING)
        assert planned.verify().charges == 3

    def test_a_cancelled_event_goes_back_to_the_line_that_paid(self, planned):
        small = PoissonSampledDpEvent(0.005, GaussianDpEvent(20.0))  # both lines dominate it
        many = _reserve(planned, 0, SelfComposedDpEvent(small, 102))
        assert sum(many.cost) == 102
        with pytest.raises(BudgetRefusedError):
            _reserve(planned, 1, SelfComposedDpEvent(small, 2))
        planned.cancel(many)
        assert not any(planned.status("a").balance.used)
        _reserve(planned, 1, SelfComposedDpEvent(TRAINING, 100))
        _reserve(planned, 2, SelfComposedDpEvent(GaussianDpEvent(20.0), 3))
        status = planned.status("a")
        assert 0.9 < status.share < 1, "a line is left"
        lines = planned.lines("a")
        assert status.share == pytest.approx(sum(status.share_of(line) for line in lines if line.state != "cancelled"))
        _reserve(planned, 3, LaplaceDpEvent(50.0))
        assert planned.status("a").share == pytest.approx(1)
        assert planned.verify().charges == 4


def test_others_write_while_a_refusal_is_explained(ledger, url, monkeypatch):
    other, figure, pool = Ledger.open(url), SumRule.epsilon, ThreadPoolExecutor()
    written = []

    def slow(rule, used):
        # The explanation goes on until another client has written.
        charge = pool.submit(other.reserve, "chat", f"other-{len(written)}", "d", GaussianDpEvent(50.0))
        written.append(charge.result(timeout=patience(20)))
        return figure(rule, used)

    monkeypatch.setattr(SumRule, "epsilon", slow)
    match = r"asks for epsilon 10\.99\d* and account 'chat' has 3 of 3 left.*lower privacy\.epsilon to that"
    with pytest.raises(BudgetRefusedError, match=match) as caught:
        ledger.reserve("chat", "run", "d", GaussianDpEvent(0.5))
    assert caught.value.__suppress_context__  # no traceback of how it was decided
    assert len(written) == 2  # what is asked, and what is left
    assert ledger.charges_of("chat", "run") == []
    assert ledger.verify().charges == 2
    pool.shutdown()
    other.close()


def test_more_than_has_a_figure_is_refused_and_not_an_invalid_event(ledger):
    plan = [SelfComposedDpEvent(LaplaceDpEvent(50.0), 3)]
    ledger.create_account("planned", *TERMS, composition="pld", plan=plan)
    with pytest.raises(BudgetRefusedError, match=r"asks for epsilon 0\.\d+ and account 'planned' has 0\.06\d* of 3"):
        ledger.reserve("planned", "run", "d", SelfComposedDpEvent(LaplaceDpEvent(50.0), 30))
    million = SelfComposedDpEvent(LaplaceDpEvent(50.0), 10**6 + 1)
    match = "more than account 'planned' has left of epsilon 3 at delta 1e-06"
    for call in (lambda: ledger.reserve("planned", "run", "d", million), lambda: ledger.check("planned", million)):
        with pytest.raises(BudgetRefusedError, match=match):
            call()
    assert kinds(ledger, "planned") == ["create", "plan"]
