"""Accounts, charges, rungs, groups, budget: the book says what happened, and what cannot happen is refused."""

import json
import stat
import statistics
import time
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from sqlalchemy import create_engine, inspect, make_url
from typer.testing import CliRunner
from usual import ADD, CAP, METRIC, RECORD, REPLACE, SELECTIVE, TERMS, USER, exposures, kinds, opened, refused, run

from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.accounting.events import MetricLocalDpEvent, to_json
from rayprivacy.accounting.published import record_sampling_event
from rayprivacy.cli.ledger import app
from rayprivacy.core.errors import BudgetRefusedError, ConfigError, LedgerError
from rayprivacy.core.units import Budget, Protection
from rayprivacy.ledger import opening
from rayprivacy.ledger.book import GENESIS
from rayprivacy.ledger.least_noise import gaussian_noise, least_noise
from rayprivacy.ledger.rules import parameters_for
from rayprivacy.ledger.store import Ledger


def test_the_file_is_private_and_reopens(tmp_path):
    path = tmp_path / "deep" / "ledger.db"
    for opener in (opened, Ledger.open):
        ledger = opener(f"sqlite:///{path}")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert ledger.account("chat").budget == CAP
        path.chmod(0o644)


def test_only_a_sqlite_file_is_a_ledger(tmp_path):
    for url in ("sqlite://", "sqlite:///:memory:", "mysql://u:secret@h/d", "nonsense", "sqlite:///a?b=c"):
        with pytest.raises(LedgerError, match=r"sqlite:///ledger\.db") as caught:
            Ledger.open(url)
        assert "secret" not in str(caught.value)
    (tmp_path / "x.db").write_bytes(b"not a database at all" * 100)
    refused("is it a ledger", Ledger.open, f"sqlite:///{tmp_path}/x.db")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ("DROP TABLE ledger_version", "earlier version of rayprivacy.* finish with that version"),
        ("UPDATE ledger_version SET version = 9999", "has schema 9999, and this version of rayprivacy reads 3"),
        ("INSERT INTO ledger_version VALUES (9999)", "has schema 3 and 9999"),
        ("DELETE FROM ledger_version", "has schema none"),
        ("ALTER TABLE ledger_version RENAME COLUMN version TO version_num", "refuses"),
    ],
)
def test_a_ledger_of_another_version_is_refused_and_left_alone(url, change, match):
    opened(url).close()
    engine = create_engine(make_url(url).set(drivername="sqlite" if "sqlite" in url else "postgresql+psycopg"))
    with engine.begin() as connection:
        connection.exec_driver_sql(change)
    tables = set(inspect(engine).get_table_names())
    refused(match, Ledger.open, url)
    assert set(inspect(engine).get_table_names()) == tables
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT name FROM accounts").scalar() == "chat"
    engine.dispose()


def test_an_account_keeps_its_terms(ledger):
    terms = {"unit": USER, "relation": ADD, "budget": CAP}
    for wanted, match in (
        ({"unit": RECORD}, "unit is 'record' and account 'chat' was created with 'user'"),
        ({"relation": REPLACE}, "relation is 'replace'"),
        ({"corpus": "news"}, "corpus is 'news' and account 'chat' was created with ''"),
        ({"composition": "zcdp"}, "composition is 'zcdp'"),
        ({"kind": SELECTIVE, "policy": "p"}, "kind is 'selective'"),
    ):
        changed: dict[str, Any] = terms | wanted
        refused(match, ledger.ensure_account, "chat", **changed)
    refused("exists", ledger.create_account, "chat", *TERMS)
    assert ledger.ensure_account("chat", USER, ADD, Budget(9.0, 1e-3)).epsilon == 3.0
    assert ledger.verify().entries == 1
    ledger.ensure_account("mail", RECORD, REPLACE, CAP)
    assert [account.name for account in ledger.accounts()] == ["chat", "mail"]
    refused("chat, mail", ledger.account, "nope")


def test_what_a_refusal_says_is_left_can_be_spent(ledger):
    ledger.reserve("chat", "a", "d", GaussianDpEvent(sigma_for(1, Budget(2.0, 1e-6))))
    left = ledger.status("chat").epsilon_remaining
    request = SelfComposedDpEvent(GaussianDpEvent(sigma_for(50, Budget(2.5, 1e-6))), 50)
    for call in (lambda: ledger.check("chat", request), lambda: ledger.reserve("chat", "b", "d", request)):
        with pytest.raises(BudgetRefusedError, match=rf"epsilon 2\.5 and account 'chat' has {left:.6g} of 3 left"):
            call()
    ledger.reserve("chat", "b", "d", GaussianDpEvent(sigma_for(1, Budget(left, 1e-6))))
    status = ledger.status("chat")
    assert status.epsilon_remaining < 1e-3
    assert 0.999 < status.share <= 1
    assert status.epsilon_spent <= 3.0


def test_names_have_limits(ledger):
    for release_id, digest in (("", "d"), ("r" * 201, "d"), ("r", ""), ("r", "d" * 65)):
        refused("characters", ledger.reserve, "chat", release_id, digest, GaussianDpEvent(50.0))
    refused("holds chat", ledger.reserve, "nope", "r", "d", GaussianDpEvent(50.0))


def test_an_older_copy_of_the_file_is_noticed(sqlite_url, tmp_path):
    path, ledger = tmp_path / "ledger.db", opened(sqlite_url)
    ledger.close()  # the last connection moves the log into the file
    early, copy = ledger.head(), path.read_bytes()
    ledger.reserve("chat", "run", "d", GaussianDpEvent(50.0))
    late = ledger.head()
    for head in (early, late, GENESIS):
        again = Ledger.open(sqlite_url, expected_head=head)
        assert again.head() == late
        again.close()
    ledger.close()
    (tmp_path / "older.db").write_bytes(copy)
    (tmp_path / "older.db").rename(path)
    for call in (ledger.head, ledger.verify, lambda: ledger.reserve("chat", "run-2", "d", GaussianDpEvent(50.0))):
        refused("replaced while it was in use", call)
    refused("older copy", Ledger.open, sqlite_url, expected_head=late)
    assert Ledger.open(sqlite_url, expected_head=early).verify(early).charges == 0


def test_a_file_that_was_moved_away_or_written_over_is_noticed(sqlite_url, tmp_path):
    path, ledger = tmp_path / "ledger.db", opened(sqlite_url)
    ledger.close()
    copy = path.read_bytes()
    ledger.reserve("chat", "run", "d", GaussianDpEvent(50.0))
    ledger.close()
    path.write_bytes(copy)
    refused("older copy", ledger.reserve, "chat", "run-2", "d", GaussianDpEvent(50.0))
    path.rename(tmp_path / "elsewhere.db")
    refused("replaced while it was in use", ledger.reserve, "chat", "run", "d", GaussianDpEvent(50.0))
    assert not path.exists()


# Opening an account is one step: with its plan or not at all.


UNIT = (USER, ADD)
FITTING = [SelfComposedDpEvent(GaussianDpEvent(20.0), 3), LaplaceDpEvent(50.0)]
TOO_DEAR = [SelfComposedDpEvent(GaussianDpEvent(20.0), 4000)]


def test_a_plan_is_registered_with_its_account_or_nothing_is_opened(ledger):
    for number, method in enumerate((ledger.create_account, ledger.ensure_account)):
        with pytest.raises(BudgetRefusedError, match="cap of 3"):
            method(f"a{number}", *TERMS, "pld", plan=TOO_DEAR)
        assert len(ledger.accounts()) == 1 + number
        method(f"a{number}", *TERMS, "pld", plan=FITTING)
        assert kinds(ledger, f"a{number}") == ["create", "plan"]
        ledger.reserve(f"a{number}", "run", "d", FITTING[0])
    assert ledger.verify().charges == 2


def test_an_account_that_exists_is_taken_as_it_is(ledger, monkeypatch):
    """Where something was charged; another plan may replace one under which nothing was."""
    ledger.create_account("planned", *TERMS, "pld", plan=FITTING)
    ledger.reserve("planned", "run", "d", FITTING[0])
    head = ledger.head()
    monkeypatch.setattr(opening, "plan_epsilon", lambda lines, delta: pytest.fail("nothing to price"))
    assert ledger.ensure_account("planned", *TERMS, "pld", plan=TOO_DEAR) == ledger.account("planned")
    assert ledger.head() == head


def admit_and_verify(url, budget, event, composition="pld", **more):
    """An account that is opened for one event and charged with it: the auditor accepts the book."""
    more |= {"plan": [event]} if composition == "pld" else {}
    ledger = Ledger.open(url)
    ledger.create_account("a", *UNIT, budget, composition, **more)
    run(ledger, "a", "run", event)
    assert ledger.verify().charges == 1
    return ledger


@pytest.mark.parametrize(
    ("queries", "epsilon", "delta"), [(1000, 3.0, 1e-6), (37, 0.5, 1e-8), (1, 0.1, 1e-7), (1000, 3.0, 1e-12)]
)
def test_noise_that_was_computed_from_a_budget_fits_it(sqlite_url, queries, epsilon, delta):
    budget = Budget(epsilon, delta)
    event = SelfComposedDpEvent(GaussianDpEvent(gaussian_noise(queries, budget, "pld")), queries)
    ledger = admit_and_verify(sqlite_url, budget, event)
    assert ledger.status("a").epsilon_spent == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize(
    ("q", "steps", "epsilon"),
    [
        (0.01, 1000, 0.1),
        pytest.param(0.001, 10_000, 0.5, marks=pytest.mark.exhaustive),
        pytest.param(1e-4, 100_000, 0.4, marks=pytest.mark.exhaustive),
    ],
)
def test_a_plan_of_small_losses_that_fills_its_cap_is_verified(sqlite_url, q, steps, epsilon):
    def event(sigma):
        return SelfComposedDpEvent(PoissonSampledDpEvent(q, GaussianDpEvent(sigma)), steps)

    budget = Budget(epsilon, 1e-6)
    admit_and_verify(sqlite_url, budget, event(least_noise(event, budget, "pld", start=1.0)))


@pytest.mark.parametrize("records", [2, *(pytest.param(many, marks=pytest.mark.exhaustive) for many in (5, 10))])
def test_a_plan_of_records_that_are_sampled_one_by_one_is_verified(sqlite_url, records):
    """Its steps are mixtures, which the auditor must not take for steps of all records at once."""
    admit_and_verify(sqlite_url, Budget(12.0, 1e-5), record_sampling_event(0.01, 4.0, records, 300))


def test_sampled_steps_at_a_high_order_are_verified(sqlite_url):
    event = SelfComposedDpEvent(PoissonSampledDpEvent(1e-4, GaussianDpEvent(1e5)), 10**6)
    admit_and_verify(sqlite_url, Budget(0.01, 1e-6), event, "rdp", order=30_000.0)


def test_the_command_line_opens_an_account_with_its_plan_or_not_at_all(sqlite_url, tmp_path):
    path = tmp_path / "plan.json"
    words = ["create", "--ledger", sqlite_url, "--account", "a", "--epsilon", "3", "--composition", "pld"]
    for plan, opens in ((TOO_DEAR, False), (FITTING, True)):
        path.write_text(json.dumps([to_json(event) for event in plan]))
        result = CliRunner().invoke(app, [*words, "--plan", str(path)])
        assert isinstance(result.exception, BudgetRefusedError) is not opens
        assert ("plan registered: epsilon 0." in result.stdout) is opens
        assert len(Ledger.open(sqlite_url).accounts()) == opens
    assert kinds(Ledger.open(sqlite_url), "a") == ["create", "plan"]


def test_the_parameters_of_a_rule_are_refused_in_words():
    with pytest.raises(ConfigError, match="only 'rdp' takes one"):
        parameters_for("zcdp", CAP, order=8.0)
    with pytest.raises(ConfigError, match=r"epsilon 0\.01 at delta 1e-06 is far less than the plan costs: raise"):
        parameters_for("rdp", Budget(0.01, 1e-6), plan=[GaussianDpEvent(1.0)])
    assert parameters_for("rdp", Budget(0.01, 1e-6), plan=[GaussianDpEvent(1000.0)])["order"] > 1


def test_what_was_opened_is_news_and_names_no_password(url):
    """The same recipe elsewhere would open another ledger or account."""
    said = []
    with Ledger.open(url) as ledger:
        for name in ("a", "b", "a"):
            ledger.news = None
            ledger.ensure_account(name, *TERMS)
            said.append(str(ledger.news))
    assert said[0].startswith("opened a new ledger, ")
    assert said[1].startswith("opened a new account in the ledger ")
    assert said[0].endswith("account 'a', epsilon 3 at delta 1e-06, from which nothing was spent before")
    assert said[2] == "None"
    assert "@" not in "".join(said)


# Releases charged in chunks, accounts that protect different things, and accounts that share a corpus.


EVENT = GaussianDpEvent(20.0)
METRIC_EVENT = MetricLocalDpEvent(0.01, 1.0, 10)


def test_what_is_no_rung_is_refused_and_the_order_of_rungs_is_told(ledger):
    wrong: tuple[Any, ...] = (-1, 1.0, "1", True, 2**31, None)
    for rung in wrong:
        refused("rung is", ledger.reserve, "chat", "run", "d", EVENT, rung=rung)
    refused("rung 2 of release 'run' comes before rung 1", ledger.reserve, "chat", "run", "d", EVENT, rung=2)
    first, _ = (ledger.reserve("chat", "run", "d", EVENT, rung=rung) for rung in (1, 2))
    refused("cannot cancel rung 1 of release 'run'", ledger.cancel, first)
    assert ledger.verify().charges == 2


def test_a_rung_that_no_longer_fits_leaves_the_ones_before(ledger):
    event = GaussianDpEvent(sigma_for(2, CAP))
    for rung in (1, 2):
        run(ledger, "chat", "run", event, rung)
    with pytest.raises(BudgetRefusedError):
        ledger.reserve("chat", "run", "d", event, rung=3)
    assert ledger.verify().outputs == 2


@pytest.mark.exhaustive
def test_many_rungs_stay_fast(ledger):
    event, times = GaussianDpEvent(1000.0), []
    for rung in range(1, 301):
        begun = time.perf_counter()
        run(ledger, "chat", "run", event, rung)
        times.append(time.perf_counter() - begun)
    assert statistics.median(times[-50:]) < 3 * statistics.median(times[:50])
    assert sum(times) < 30
    assert ledger.verify().charges == 300


def test_what_protects_something_else_costs_nothing(ledger):
    ledger.check("chat", EVENT, Protection())
    for other in (Protection(RECORD), Protection(USER, REPLACE), Protection(kind=SELECTIVE), Protection(kind=METRIC)):
        with pytest.raises(LedgerError, match="charge an account of the same unit, relation and kind"):
            ledger.reserve("chat", "run", "d", EVENT, protection=other)
        refused("charge an account of the same unit, relation and kind", ledger.check, "chat", EVENT, other)
    assert kinds(ledger) == ["create"]


def test_terms_that_do_not_go_together_open_nothing(ledger):
    wrong: tuple[tuple[str, dict[str, Any]], ...] = (
        ("gdp", {"kind": SELECTIVE}),
        ("gdp", {"policy": "phones"}),
        ("metric", {"kind": METRIC, "policy": "phones"}),
        ("metric", {}),
        ("metric", {"kind": SELECTIVE, "policy": "phones"}),
        ("gdp", {"kind": METRIC}),
        ("rdp", {}),
        ("gdp", {"order": 8.0}),
        ("prv", {}),
    )
    for composition, more in wrong:
        for call in (ledger.create_account, ledger.ensure_account):
            with pytest.raises(ConfigError):
                call("other", *TERMS, composition, **more)
    assert ledger.verify().entries == 1


@pytest.fixture
def corpus(ledger):
    ledger.create_account("phones", *TERMS, kind=SELECTIVE, policy="phones", corpus="mail")
    ledger.create_account("words", *TERMS, "metric", kind=METRIC, corpus="mail")
    ledger.create_account("central", *TERMS, corpus="mail")
    ledger.create_account("zcdp", RECORD, REPLACE, CAP, "zcdp", corpus="mail")
    ledger.create_account("other", *TERMS, corpus="news")
    assert [account.name for account in ledger.group("central")] == ["phones", "words", "zcdp"]
    assert ledger.group("chat") == []
    return ledger


def test_a_selective_run_exposes_the_central_accounts_of_its_corpus(corpus):
    run(corpus, "central", "c1", EVENT)
    run(corpus, "zcdp", "z1", LaplaceDpEvent(20.0))
    assert not any(exposures(corpus, account.name) for account in corpus.accounts()), "a central run exposes nobody"
    with pytest.raises(BudgetRefusedError):
        run(corpus, "phones", "refused", GaussianDpEvent(0.01))
    for account, release, event, rung in (
        ("phones", "s1", EVENT, 0),
        ("words", "w1", METRIC_EVENT, 0),
        ("phones", "s2", EVENT, 1),
        ("phones", "s2", EVENT, 2),
        ("phones", "s1", EVENT, 0),  # asked again: no new charge, no new exposure
    ):
        run(corpus, account, release, event, rung)
    for account in ("central", "zcdp"):
        assert exposures(corpus, account) == ["s1", "w1", "s2", "s2"]
        assert corpus.status(account).exposures == 4
        facts = [entry.facts for entry in corpus.entries(account) if entry.kind == "exposure"]
        assert [fact["account"] for fact in facts] == ["phones", "words", "phones", "phones"]
        assert [fact["kind"] for fact in facts[:2]] == ["selective", "metric-local"]
    for account in ("chat", "other", "phones", "words"):
        assert exposures(corpus, account) == []
    assert corpus.verify().charges == 6


def test_a_release_that_a_central_account_pays_for_exposes_nobody(corpus):
    run(corpus, "central", "both", EVENT)
    run(corpus, "phones", "both", EVENT)
    corpus.create_account("late", *TERMS, corpus="mail")
    assert not any(exposures(corpus, account.name) for account in corpus.accounts())
    corpus.reserve("central", "reserved", "d", EVENT)
    run(corpus, "phones", "reserved", EVENT)
    run(corpus, "central", "reserved", EVENT)  # too late
    corpus.create_account("later", *TERMS, corpus="mail")
    for account in ("central", "zcdp", "late", "later"):
        assert exposures(corpus, account) == ["reserved"]
    assert corpus.verify().charges == 4


def test_a_central_account_opened_later_learns_what_has_happened(corpus):
    run(corpus, "phones", "s1", EVENT)
    gone = corpus.reserve("phones", "s2", "d", EVENT, protection=Protection(kind=SELECTIVE))
    corpus.cancel(gone)
    corpus.create_account("late", *TERMS, corpus="mail")
    corpus.create_account("late news", *TERMS, corpus="news")
    corpus.create_account("late selective", *TERMS, kind=SELECTIVE, policy="p", corpus="mail")
    assert exposures(corpus, "late") == ["s1"]  # what was cancelled was never drawn
    assert exposures(corpus, "central") == ["s1", "s2"]
    assert exposures(corpus, "late selective") == ["s1"]  # another policy protects other text
    assert exposures(corpus, "late news") == []
    run(corpus, "phones", "s3", EVENT)
    assert exposures(corpus, "late") == ["s1", "s3"]
    assert corpus.verify().accounts == 9
