"""A searcher under a budget, asked by hand as Ray Tune asks it: what is charged, refused, served and restored."""

import pytest
from budgeted_bench import EVENT, SIGMA, RandomSearch, lines, open_account, price, price_of_two
from dp_accounting.dp_event import GaussianDpEvent
from optuna.distributions import CategoricalDistribution
from ray import cloudpickle, tune
from ray.tune.search import BasicVariantGenerator, Searcher
from ray.tune.search.optuna import OptunaSearch

import rayprivacy as rp
from rayprivacy.accounting.events import MetricLocalDpEvent
from rayprivacy.core.errors import BudgetRefusedError, ConfigError, LedgerError
from rayprivacy.core.keys import create_key
from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit, Protection
from rayprivacy.ledger.store import Ledger
from rayprivacy.tuning.budgeted import NO_BUDGET, trial_release

FINISHED = Searcher.FINISHED


def searcher(url, inner=None, cost=price, account="chat", **settings):
    return rp.BudgetedSearcher(inner or RandomSearch(), cost, url, account, name="mine", **settings)


def states(url):
    return [state for *_, state in lines(url)]


def test_a_trial_is_charged_before_its_config_is_handed_out_and_committed_at_its_end(url):
    open_account(url, 3.5)
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


def test_it_ends_when_the_account_is_empty_and_a_refused_suggestion_charges_nothing(url):
    open_account(url, 3.5)
    inner = RandomSearch()
    search = searcher(url, inner)
    assert all(isinstance(search.suggest(name), dict) for name in "abc")
    before = lines(url)
    assert search.suggest("d") == FINISHED
    assert (search.exhausted, inner.told, lines(url)) == (NO_BUDGET, [(None, True)], before)
    for name in ("a", "b", "c", "never seen"):
        search.on_trial_complete(name, {"loss": 1.0})
    assert states(url) == ["committed"] * 3


def test_a_failed_trial_stays_charged_and_is_charged_again_when_it_runs_again(url):
    open_account(url, 9.5)
    search = searcher(url, RandomSearch([0.5]))
    config = search.suggest("a")
    search.on_trial_complete("a", error=True)
    release = trial_release("mine", config)
    assert lines(url) == [(release, 0, "started")]
    assert searcher(url, RandomSearch([0.5])).suggest("b") == config
    assert lines(url) == [(release, 0, "started"), (f"{release}-2", 0, "started")]
    third = searcher(url, RandomSearch([0.5]))
    third.suggest("c")
    third.on_trial_complete("c", {"loss": 4.0})
    assert lines(url)[2:] == [(f"{release}-3", 0, "committed")]
    served = RandomSearch([0.5])
    assert searcher(url, served).suggest("d") == FINISHED
    assert served.told == [(4.0, False)]


def test_a_trial_that_is_repeatable_runs_again_on_its_charge(url):
    open_account(url, 9.5)
    for error in (True, True, False, False):
        search = searcher(url, RandomSearch([0.5]), repeatable=True)
        assert search.suggest("a") == {"x": 0.5}
        search.on_trial_complete("a", None if error else {"loss": 1.0}, error)
        assert states(url) == ["started" if error else "committed"]


def test_equal_configs_are_paid_once_and_their_figures_are_served(url):
    open_account(url, 2.5)
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


def test_a_space_without_other_values_ends_the_search(url):
    open_account(url, 9.5)
    inner = OptunaSearch({"x": CategoricalDistribution([1, 2])}, metric="loss", mode="min")
    search = searcher(url, inner)
    assert {search.suggest(name)["x"] for name in "ab"} == {1, 2}
    assert search.suggest("c") == FINISHED
    assert search.exhausted == "the space has no other values"
    assert len(lines(url)) == 2


def test_a_name_stands_for_one_price(url):
    open_account(url, 9.5)
    searcher(url, RandomSearch([0.5])).suggest("a")
    with pytest.raises(LedgerError, match="another release id"):
        searcher(url, RandomSearch([0.5]), lambda _: [GaussianDpEvent(9.0)]).suggest("b")
    assert len(lines(url)) == 1


def test_configs_that_cannot_be_run_are_skipped_before_they_are_charged(url):
    def picky(config):
        if config["x"] != 0.7:
            raise ConfigError("x is out of range.")
        return [EVENT]

    open_account(url, 9.5)
    inner = RandomSearch([0.1, 0.2, 0.7])
    assert searcher(url, inner, picky).suggest("a") == {"x": 0.7}
    assert inner.told == [(None, True)] * 2
    with pytest.raises(ConfigError, match="the last as x is out of range"):
        searcher(url, cost=picky).suggest("a")
    assert len(lines(url)) == 1


def test_a_search_waits_for_trials_that_charge_themselves(url):
    """Two trials of two charges in an account for three: the second begins when the first has charged half of it."""
    open_account(url, 3.5)
    inner = RandomSearch()
    search = searcher(url, inner, price_of_two, charges="trial")
    first = search.suggest("a")
    assert lines(url) == []
    assert [search.suggest(name) for name in "bc"] == [None, None]
    with Ledger.open(url) as ledger:
        ledger.start(ledger.reserve("chat", trial_release("mine", first), "d", EVENT, rung=1))
    assert search.suggest("d") is None, "the other half is still owed"
    search.on_trial_complete("a", {"loss": 1.0})
    assert isinstance(search.suggest("e"), dict)
    assert inner.asked == 2, "the suggestion that waited is the one that runs"
    search.on_trial_complete("e", {"loss": 1.0})
    assert len(lines(url)) == 1


def test_where_no_trial_is_affordable_a_free_one_is(url):
    open_account(url, 0.5)
    inner = RandomSearch()
    search = searcher(url, inner, charges="trial")
    assert search.suggest("a") == FINISHED
    assert (search.exhausted, inner.told) == (NO_BUDGET, [(None, True)])
    free = searcher(url, cost=lambda _: [])
    assert free.suggest("a") != FINISHED
    free.on_trial_complete("a", {"loss": 1.0})
    assert lines(url) == []


def test_a_copy_finds_the_charges_and_makes_none_again(url):
    open_account(url, 3.5)
    search = searcher(url)
    search.suggest("a")
    copy = cloudpickle.loads(cloudpickle.dumps(search))
    for each in (search, copy):
        each.on_trial_complete("a", {"loss": 1.0})
        assert states(url) == ["committed"]
    assert isinstance(copy.suggest("b"), dict)
    assert len(lines(url)) == 2
    with Ledger.open(url) as ledger, pytest.raises(ConfigError, match="give the ledger's URL"):
        cloudpickle.loads(cloudpickle.dumps(searcher(ledger))).suggest("c")


@pytest.mark.parametrize(("repeatable", "charges"), [(False, 2), (True, 1)])
def test_an_interrupted_trial_runs_again_if_restored(url, tmp_path, repeatable, charges):
    open_account(url, 2.5 if repeatable else 3.5)
    search = searcher(url, repeatable=repeatable)
    search.suggest("a")
    state = cloudpickle.loads(cloudpickle.dumps(search.get_state()))
    search.save(str(tmp_path / "inner"))
    restored = searcher(url, repeatable=repeatable)
    restored.set_state(state)
    restored.restore(str(tmp_path / "inner"))
    assert len(lines(url)) == charges
    restored.on_trial_complete("a", {"loss": 1.0})
    assert states(url)[-1] == "committed"
    assert isinstance(restored.suggest("b"), dict)
    assert restored.searcher.asked == 2
    if not repeatable:
        with pytest.raises(BudgetRefusedError):
            searcher(url).set_state(restored.get_state())
        assert len(lines(url)) == 3


def test_an_older_copy_of_the_ledger_is_noticed(url, tmp_path):
    open_account(url, 3.5)
    older = (tmp_path / "ledger.db").read_bytes()
    search = searcher(url)
    search.suggest("a")
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    (tmp_path / "ledger.db").write_bytes(older)
    with pytest.raises(LedgerError, match="older copy"):
        search.suggest("b")


def test_constants_of_the_space_are_part_of_the_trial(url):
    open_account(url, 9.5)
    for sigma in (SIGMA, 3.0):
        search = searcher(url, OptunaSearch(metric="loss", mode="min", seed=1))
        assert search.set_search_properties(None, None, {"x": tune.uniform(0, 1), "sigma": sigma})
        config = search.suggest("a")
        assert set(config) == {"x"}
        with Ledger.open(url) as ledger:
            (charge,) = ledger.charges_of("chat", trial_release("mine", config | {"sigma": sigma}))
        assert charge.event == GaussianDpEvent(sigma)
    assert len(lines(url)) == 2


def test_other_accounts_and_keys(url, tmp_path):
    local = Protection(PrivacyUnit.RECORD, NeighbouringRelation.REPLACE, AccountKind.METRIC_LOCAL)
    key = create_key(tmp_path / "ledger.key")
    with Ledger.open(url, key=key) as ledger:
        budget = Budget(10.0, 1e-6)
        ledger.create_account("local", local.unit, local.relation, budget, "metric", kind=local.kind)
    own = {"protection": local, "ledger_key": tmp_path / "ledger.key", "name": "mine"}
    search = rp.BudgetedSearcher(RandomSearch(), lambda _: [MetricLocalDpEvent(1.0, 1.0, 2)] * 2, url, "local", **own)
    assert search.suggest("a")
    assert search.suggest("b")
    assert search.suggest("c") == FINISHED
    with Ledger.open(url, key=key) as ledger:
        assert len(ledger.lines("local")) == 2
        ledger.verify()


@pytest.mark.parametrize(
    ("kind", "says", "settings"),
    [
        (ConfigError, r"no ray\.tune\.search\.Searcher.*RandomSampler", {"inner": BasicVariantGenerator()}),
        (
            ConfigError,
            r"^((?!hunter2).)*holds a password((?!hunter2).)*$",
            {"url": "postgresql://me:hunter2@db/ledger"},
        ),
        (LedgerError, "nosuch", {"account": "nosuch"}),
        (LedgerError, "record", {"protection": Protection(PrivacyUnit.RECORD)}),
        (ConfigError, r"'x' of type object.*with_parameters", {"inner": RandomSearch([object()] * 300)}),
    ],
)
def test_what_is_wrong_is_refused_at_once(url, kind, says, settings):
    open_account(url, 3.5)
    with pytest.raises(kind, match=says):
        searcher(**{"url": url} | settings).suggest("a")
    assert lines(url) == []
