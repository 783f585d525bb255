"""A searcher under a budget, asked by hand as Ray Tune asks it: what is charged, refused, served and restored."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from budgeted_bench import EVENT, SIGMA, RandomSearch, lines, open_account, price, price_of_two
from dp_accounting.dp_event import DpEvent, GaussianDpEvent
from optuna.distributions import CategoricalDistribution, FloatDistribution
from ray import cloudpickle, tune
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Searcher
from ray.tune.search.optuna import OptunaSearch

import rayprivacy as rp
from rayprivacy.accounting.events import MetricLocalDpEvent
from rayprivacy.core.errors import BudgetRefusedError, ConfigError, LedgerError
from rayprivacy.core.keys import create_key
from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit, Protection
from rayprivacy.ledger.store import Ledger
from rayprivacy.tuning.budgeted import NO_BUDGET, trial_release

FINISHED = Searcher.FINISHED


@pytest.fixture
def account(url: str) -> Callable[[float], None]:
    return partial(open_account, url)


def searcher(url: Any, inner: Searcher | None = None, cost: Any = price, **settings: Any) -> rp.BudgetedSearcher:
    return rp.BudgetedSearcher(inner or RandomSearch(), cost, url, "chat", name="mine", **settings)


def states(url: str) -> list[str]:
    return [state for *_, state in lines(url)]


def test_a_trial_is_charged_before_its_config_is_handed_out_and_committed_at_its_end(url: str, account: Any) -> None:
    account(3.5)
    search = searcher(url)
    config = search.suggest("a")
    assert lines(url) == [(trial_release("mine", config), 0, "started")]
    search.on_trial_result("a", {"loss": 2.0})
    search.on_trial_complete("a", {"loss": 1.0, "training_iteration": 3, "secret": "text"})
    assert states(url) == ["committed"]
    with Ledger.open(url) as ledger:
        (charge,) = ledger.charges_of("chat", trial_release("mine", config))
        assert charge.event == EVENT
        assert ledger.output(charge) == b'{"loss": 1.0, "training_iteration": 3.0}'


def test_it_ends_when_the_account_is_empty_and_a_refused_suggestion_charges_nothing(url: str, account: Any) -> None:
    account(3.5)
    inner = RandomSearch()
    search = searcher(url, inner)
    assert all(isinstance(search.suggest(name), dict) for name in "abc")
    before = lines(url)
    assert len(before) == 3
    assert search.suggest("d") == FINISHED
    assert search.exhausted == NO_BUDGET
    assert inner.told == [(None, True)]
    assert lines(url) == before
    for name in "abc":
        search.on_trial_complete(name, {"loss": 1.0})
    assert states(url) == ["committed"] * 3


def test_a_failed_trial_stays_charged_and_is_charged_again_when_it_runs_again(url: str, account: Any) -> None:
    account(9.5)
    search = searcher(url, RandomSearch([0.5]))
    config = search.suggest("a")
    search.on_trial_complete("a", error=True)
    release = trial_release("mine", config)
    assert lines(url) == [(release, 0, "started")]
    again = searcher(url, RandomSearch([0.5]))
    assert again.suggest("b") == config
    assert lines(url) == [(release, 0, "started"), (f"{release}-2", 0, "started")]
    third = searcher(url, RandomSearch([0.5]))
    third.suggest("c")
    third.on_trial_complete("c", {"loss": 4.0})
    assert lines(url) == [(release, 0, "started"), (f"{release}-2", 0, "started"), (f"{release}-3", 0, "committed")]
    served = RandomSearch([0.5])
    assert searcher(url, served).suggest("d") == FINISHED
    assert served.told == [(4.0, False)]


def test_a_trial_that_is_repeatable_runs_again_on_its_charge(url: str, account: Any) -> None:
    account(9.5)
    for error, state in ((True, "started"), (True, "started"), (False, "committed"), (False, "committed")):
        search = searcher(url, RandomSearch([0.5]), repeatable=True)
        assert search.suggest("a") == {"x": 0.5}
        search.on_trial_complete("a", None if error else {"loss": 1.0}, error)
        assert states(url) == [state]


def test_equal_configs_are_paid_once_and_their_figures_are_served(url: str, account: Any) -> None:
    account(2.5)
    inner = RandomSearch([0.5, 0.5, 0.5, 0.7])
    search = searcher(url, inner)
    search.suggest("a")
    assert search.suggest("b") == {"x": 0.7}, "equal ones are not started while the first one runs"
    assert inner.told == [(None, True)] * 2
    search.on_trial_complete("a", {"loss": 3.0})
    resumed = RandomSearch([0.5, 0.5])
    assert searcher(url, resumed).suggest("c") == FINISHED
    assert resumed.told == [(3.0, False)] * 2
    assert len(lines(url)) == 2


def test_a_space_without_other_values_ends_the_search(url: str, account: Any) -> None:
    account(9.5)
    inner = OptunaSearch({"x": CategoricalDistribution([1, 2])}, metric="loss", mode="min")
    search = searcher(url, inner)
    assert {search.suggest(name)["x"] for name in "ab"} == {1, 2}
    assert search.suggest("c") == FINISHED
    assert search.exhausted == "the space has no other values"
    assert len(lines(url)) == 2


def test_a_name_stands_for_one_price(url: str, account: Any) -> None:
    account(9.5)
    search = searcher(url, RandomSearch([0.5]))
    search.suggest("a")
    other = searcher(url, RandomSearch([0.5]), lambda _: [GaussianDpEvent(9.0)])
    with pytest.raises(LedgerError, match="another release id"):
        other.suggest("b")
    assert len(lines(url)) == 1


def test_configs_that_cannot_be_run_are_skipped_before_they_are_charged(url: str, account: Any) -> None:
    def picky(config: dict[str, Any]) -> list[DpEvent]:
        if config["x"] != 0.7:
            raise ConfigError("x is out of range.")
        return [EVENT]

    account(9.5)
    inner = RandomSearch([0.1, 0.2, 0.7])
    search = searcher(url, inner, picky)
    assert search.suggest("a") == {"x": 0.7}
    assert inner.told == [(None, True)] * 2
    assert len(lines(url)) == 1
    with pytest.raises(ConfigError, match="the last as x is out of range"):
        searcher(url, cost=picky).suggest("a")


def test_a_free_trial_needs_no_budget(url: str, account: Any) -> None:
    account(0.5)
    search = searcher(url, cost=lambda _: [])
    search.suggest("a")
    search.on_trial_complete("a", {"loss": 1.0})
    assert lines(url) == []


@pytest.mark.parametrize("limited", ["inside", "outside"])
def test_with_a_concurrency_limiter_on_either_side(url: str, account: Any, limited: str) -> None:
    account(3.5)
    inside = limited == "inside"
    search = searcher(url, ConcurrencyLimiter(RandomSearch(), 2)) if inside else ConcurrencyLimiter(searcher(url), 2)
    assert search.suggest("a")
    assert search.suggest("b")
    assert search.suggest("c") is None
    assert len(lines(url)) == 2
    search.on_trial_complete("a", {"loss": 1.0})
    assert search.suggest("d")
    assert states(url) == ["committed", "started", "started"]


def test_a_search_waits_for_trials_that_charge_themselves(url: str, account: Any) -> None:
    """Two trials of two charges in an account for three: the second begins when the first has charged half of it."""
    account(3.5)

    inner = RandomSearch()
    search = searcher(url, inner, price_of_two, charges="trial")
    first = search.suggest("a")
    assert lines(url) == []
    assert search.suggest("b") is None
    assert search.suggest("c") is None
    assert inner.asked == 2
    with Ledger.open(url) as ledger:
        release = trial_release("mine", first)
        ledger.start(ledger.reserve("chat", release, "d", EVENT, rung=1))
    assert search.suggest("d") is None, "the other half is still owed"
    search.on_trial_complete("a", {"loss": 1.0})
    assert isinstance(search.suggest("e"), dict)
    assert inner.asked == 2, "the suggestion that waited is the one that runs"
    search.on_trial_complete("e", {"loss": 1.0})
    assert len(lines(url)) == 1


def test_a_search_of_trials_that_charge_themselves_ends_when_none_is_affordable(url: str, account: Any) -> None:
    account(0.5)
    inner = RandomSearch()
    search = searcher(url, inner, charges="trial")
    assert search.suggest("a") == FINISHED
    assert (search.exhausted, inner.told, lines(url)) == (NO_BUDGET, [(None, True)], [])


def test_a_copy_finds_the_charges_and_makes_none_again(url: str, account: Any) -> None:
    account(3.5)
    search = searcher(url)
    search.suggest("a")
    copy = cloudpickle.loads(cloudpickle.dumps(search))
    assert states(url) == ["started"]
    for each in (search, copy):
        each.on_trial_complete("a", {"loss": 1.0})
        assert states(url) == ["committed"]
    assert isinstance(copy.suggest("b"), dict)
    assert len(lines(url)) == 2


def test_a_search_is_not_restored_without_the_url_of_its_ledger(url: str, account: Any) -> None:
    account(3.5)
    with Ledger.open(url) as ledger:
        search = searcher(ledger)
        assert search.suggest("a")
        copy = cloudpickle.loads(cloudpickle.dumps(search))
        with pytest.raises(ConfigError, match="give the ledger's URL"):
            copy.suggest("b")


@pytest.mark.parametrize(("repeatable", "charges"), [(False, 2), (True, 1)])
def test_a_trial_that_was_interrupted_runs_again_when_the_search_is_restored(
    url: str, account: Any, tmp_path: Path, repeatable: bool, charges: int
) -> None:
    account(3.5)
    search = searcher(url, RandomSearch(), repeatable=repeatable)
    search.suggest("a")
    state = cloudpickle.loads(cloudpickle.dumps(search.get_state()))
    search.save(str(tmp_path / "inner"))
    restored = searcher(url, RandomSearch(), repeatable=repeatable)
    restored.set_state(state)
    restored.restore(str(tmp_path / "inner"))
    assert len(lines(url)) == charges
    restored.on_trial_complete("a", {"loss": 1.0})
    assert states(url)[-1] == "committed"
    assert isinstance(restored.suggest("b"), dict)
    assert restored.searcher.asked == 2


def test_a_restored_search_that_cannot_pay_is_refused(url: str, account: Any) -> None:
    account(1.5)
    search = searcher(url)
    search.suggest("a")
    with pytest.raises(BudgetRefusedError):
        searcher(url).set_state(search.get_state())
    assert states(url) == ["started"]


def test_an_older_copy_of_the_ledger_is_noticed(url: str, account: Any, tmp_path: Path) -> None:
    account(3.5)
    older = (tmp_path / "ledger.db").read_bytes()
    search = searcher(url)
    search.suggest("a")
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    (tmp_path / "ledger.db").write_bytes(older)
    with pytest.raises(LedgerError, match="older copy"):
        search.suggest("b")


def test_constants_of_the_space_are_part_of_the_trial(url: str, account: Any) -> None:
    account(9.5)
    for sigma in (SIGMA, 3.0):
        inner = OptunaSearch(metric="loss", mode="min", seed=1)
        search = searcher(url, inner)
        assert search.set_search_properties(None, None, {"x": tune.uniform(0, 1), "sigma": sigma})
        config = search.suggest("a")
        assert set(config) == {"x"}
        release = trial_release("mine", config | {"sigma": sigma})
        with Ledger.open(url) as ledger:
            (charge,) = ledger.charges_of("chat", release)
        assert charge.event == GaussianDpEvent(sigma)
    assert len(lines(url)) == 2


def test_other_accounts_and_keys(url: str, tmp_path: Path) -> None:
    key = create_key(tmp_path / "ledger.key")
    with Ledger.open(url, key=key) as ledger:
        kind, relation = AccountKind.METRIC_LOCAL, NeighbouringRelation.REPLACE
        ledger.create_account("local", PrivacyUnit.RECORD, relation, Budget(10.0, 1e-6), "metric", kind=kind)
    local = Protection(PrivacyUnit.RECORD, relation, kind)

    cost = [MetricLocalDpEvent(1.0, 1.0, 2)] * 2
    own = {"protection": local, "ledger_key": tmp_path / "ledger.key"}
    search = rp.BudgetedSearcher(RandomSearch(), lambda _: cost, url, "local", name="mine", **own)
    assert search.suggest("a")
    assert search.suggest("b")
    assert search.suggest("c") == FINISHED
    with Ledger.open(url, key=key) as ledger:
        assert len(ledger.lines("local")) == 2
        ledger.verify()


def test_what_is_wrong_is_refused_at_once(url: str, account: Any) -> None:
    account(3.5)
    with pytest.raises(ConfigError, match=r"no ray\.tune\.search\.Searcher.*RandomSampler"):
        searcher(url, BasicVariantGenerator())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="holds a password") as refused:
        searcher("postgresql://me:hunter2@db/ledger")
    assert "hunter2" not in str(refused.value)
    with pytest.raises(LedgerError):
        rp.BudgetedSearcher(RandomSearch(), price, url, "nosuch", name="mine")
    with pytest.raises(LedgerError, match="record"):
        searcher(url, protection=Protection(PrivacyUnit.RECORD))
    with pytest.raises(ConfigError, match=r"'x' of type object.*with_parameters"):
        searcher(url, RandomSearch([object()] * 300)).suggest("a")
    assert lines(url) == []


def test_optuna_learns_from_what_it_is_told(url: str, account: Any) -> None:
    account(9.5)
    inner = OptunaSearch({"x": FloatDistribution(0, 1)}, metric="loss", mode="min")
    search = searcher(url, inner)
    search.suggest("a")
    search.suggest("b")
    search.on_trial_result("a", {"loss": 0.3, "training_iteration": 1})
    search.on_trial_complete("a", {"loss": 0.25})
    search.on_trial_complete("b", error=True)
    assert [trial.values for trial in inner._ot_study.trials] == [[0.25], None]
    search.on_trial_complete("never seen", {"loss": 0.0})
