"""Opening an account is one step: with its plan or not at all, and never with a rule that could admit nothing."""

import json
from pathlib import Path

import pytest
from dp_accounting import DpEvent, GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from typer.testing import CliRunner
from usual import ADD, CAP, TERMS, USER, kinds, run

from rayprivacy.accounting.events import to_json
from rayprivacy.accounting.published import record_sampling_event
from rayprivacy.cli.ledger import app
from rayprivacy.core.errors import BudgetRefusedError, ConfigError
from rayprivacy.core.units import Budget
from rayprivacy.ledger import opening
from rayprivacy.ledger.least_noise import gaussian_noise, least_noise
from rayprivacy.ledger.rules import parameters_for
from rayprivacy.ledger.store import Ledger

UNIT = (USER, ADD)
FITTING = [SelfComposedDpEvent(GaussianDpEvent(20.0), 3), LaplaceDpEvent(50.0)]
TOO_DEAR = [SelfComposedDpEvent(GaussianDpEvent(20.0), 4000)]


class TestPlan:
    """An account of composition 'pld' that is opened with its plan."""

    @pytest.mark.parametrize("method", ["create_account", "ensure_account"])
    def test_it_is_registered_with_the_account(self, ledger: Ledger, method: str) -> None:
        getattr(ledger, method)("a", *TERMS, "pld", plan=FITTING)
        assert kinds(ledger, "a") == ["create", "plan"]
        ledger.reserve("a", "run", "d", FITTING[0])
        assert ledger.verify().charges == 1

    @pytest.mark.parametrize("method", ["create_account", "ensure_account"])
    def test_over_the_cap_nothing_is_opened(self, ledger: Ledger, method: str) -> None:
        with pytest.raises(BudgetRefusedError, match="cap of 3"):
            getattr(ledger, method)("a", *TERMS, "pld", plan=TOO_DEAR)
        assert [account.name for account in ledger.accounts()] == ["chat"]
        ledger.create_account("a", *TERMS, "pld", plan=FITTING)

    def test_an_account_that_exists_is_taken_as_it_is(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        ledger.create_account("planned", *TERMS, "pld", plan=FITTING)
        ledger.create_account("unplanned", *TERMS, "pld")
        head = ledger.head()
        monkeypatch.setattr(opening, "plan_epsilon", lambda lines, delta: pytest.fail("nothing to price"))
        for name in ("planned", "unplanned"):
            assert ledger.ensure_account(name, *TERMS, "pld", plan=TOO_DEAR) == ledger.account(name)
        assert ledger.head() == head

    @pytest.mark.parametrize(
        ("queries", "epsilon", "delta"), [(1000, 3.0, 1e-6), (37, 0.5, 1e-8), (1, 0.1, 1e-7), (1000, 3.0, 1e-12)]
    )
    def test_noise_that_was_computed_from_a_budget_fits_it(
        self, ledger: Ledger, queries: int, epsilon: float, delta: float
    ) -> None:
        budget = Budget(epsilon, delta)
        event = SelfComposedDpEvent(GaussianDpEvent(gaussian_noise(queries, budget, "pld")), queries)
        ledger.ensure_account("a", *UNIT, budget, "pld", plan=[event])
        run(ledger, "a", "run", event)
        assert ledger.status("a").epsilon_spent == pytest.approx(epsilon, rel=1e-6)
        assert ledger.verify().charges == 1


@pytest.mark.parametrize(
    ("q", "steps", "epsilon"),
    [
        (0.01, 1000, 0.1),
        pytest.param(0.001, 10_000, 0.5, marks=pytest.mark.exhaustive),
        pytest.param(1e-4, 100_000, 0.4, marks=pytest.mark.exhaustive),
    ],
)
def test_a_plan_of_small_losses_that_fills_its_cap_is_verified(
    sqlite_url: str, q: float, steps: int, epsilon: float
) -> None:
    ledger = Ledger.open(sqlite_url)

    def event(sigma: float) -> DpEvent:
        return SelfComposedDpEvent(PoissonSampledDpEvent(q, GaussianDpEvent(sigma)), steps)

    budget = Budget(epsilon, 1e-6)
    sigma = least_noise(event, budget, "pld", start=1.0)
    ledger.create_account("a", *UNIT, budget, "pld", plan=[event(sigma)])
    run(ledger, "a", "run", event(sigma))
    assert ledger.verify().charges == 1


@pytest.mark.parametrize(
    "records",
    [2, pytest.param(5, marks=pytest.mark.exhaustive), pytest.param(10, marks=pytest.mark.exhaustive)],
)
def test_a_plan_of_records_that_are_sampled_one_by_one_is_verified(sqlite_url: str, records: int) -> None:
    """Its steps are mixtures, which the auditor must not take for steps of all records at once."""
    ledger, event = Ledger.open(sqlite_url), record_sampling_event(0.01, 4.0, records, 300)
    ledger.create_account("a", *UNIT, Budget(12.0, 1e-5), "pld", plan=[event])
    run(ledger, "a", "run", event)
    assert ledger.verify().charges == 1


def test_sampled_steps_at_a_high_order_are_verified(sqlite_url: str) -> None:
    ledger = Ledger.open(sqlite_url)
    event = SelfComposedDpEvent(PoissonSampledDpEvent(1e-4, GaussianDpEvent(1e5)), 10**6)
    ledger.create_account("a", *UNIT, Budget(0.01, 1e-6), "rdp", order=30_000.0)
    run(ledger, "a", "run", event)
    assert ledger.verify().charges == 1


def _plan_file(folder: Path, plan: list[DpEvent]) -> str:
    (folder / "plan.json").write_text(json.dumps([to_json(event) for event in plan]))
    return str(folder / "plan.json")


def test_the_command_line_opens_an_account_with_its_plan_or_not_at_all(sqlite_url: str, tmp_path: Path) -> None:
    def create(plan: list[DpEvent]) -> tuple[str, BaseException | None]:
        options = ["--epsilon", "3", "--composition", "pld", "--plan", _plan_file(tmp_path, plan)]
        result = CliRunner().invoke(app, ["create", "--ledger", sqlite_url, "--account", "a", *options])
        return result.stdout, result.exception

    assert isinstance(create(TOO_DEAR)[1], BudgetRefusedError)
    assert Ledger.open(sqlite_url).accounts() == []
    printed, error = create(FITTING)
    assert error is None
    assert "plan registered: epsilon 0." in printed
    assert kinds(Ledger.open(sqlite_url), "a") == ["create", "plan"]


def test_an_order_is_for_one_rule_only() -> None:
    with pytest.raises(ConfigError, match="only 'rdp' takes one"):
        parameters_for("zcdp", CAP, order=8.0)


def test_a_cap_far_below_the_plan_is_told_as_that() -> None:
    with pytest.raises(ConfigError, match=r"epsilon 0\.01 at delta 1e-06 is far less than the plan costs: raise"):
        parameters_for("rdp", Budget(0.01, 1e-6), plan=[GaussianDpEvent(1.0)])
    assert parameters_for("rdp", Budget(0.01, 1e-6), plan=[GaussianDpEvent(1000.0)])["order"] > 1


def test_what_was_opened_is_news_and_names_no_password(url: str) -> None:
    """The same recipe elsewhere would open another ledger or account."""
    ledger, said = Ledger.open(url), []
    for name in ("a", "b", "a"):
        ledger.news = None
        ledger.ensure_account(name, *TERMS)
        said.append(str(ledger.news))
    assert said[0].startswith("opened a new ledger, ")
    assert said[1].startswith("opened a new account in the ledger ")
    assert said[0].endswith("account 'a', epsilon 3 at delta 1e-06, from which nothing was spent before")
    assert said[2] == "None"
    assert "@" not in "".join(said)
    ledger.close()
