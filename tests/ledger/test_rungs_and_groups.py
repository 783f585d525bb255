"""Releases charged in chunks, accounts that protect different things, and accounts that share a corpus."""

import statistics
import time
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent
from usual import CAP, METRIC, RECORD, REPLACE, SELECTIVE, TERMS, USER, exposures, kinds, refused, run

from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.accounting.events import MetricLocalDpEvent
from rayprivacy.core.errors import BudgetRefusedError, ConfigError, LedgerError
from rayprivacy.core.units import Protection
from rayprivacy.ledger.store import Ledger

EVENT = GaussianDpEvent(20.0)
METRIC_EVENT = MetricLocalDpEvent(0.01, 1.0, 10)


def test_what_is_no_rung_is_refused_and_the_order_of_rungs_is_told(ledger: Ledger) -> None:
    wrong: tuple[Any, ...] = (-1, 1.0, "1", True, 2**31, None)
    for rung in wrong:
        refused("rung is", ledger.reserve, "chat", "run", "d", EVENT, rung=rung)
    refused("rung 2 of release 'run' comes before rung 1", ledger.reserve, "chat", "run", "d", EVENT, rung=2)
    first, _ = (ledger.reserve("chat", "run", "d", EVENT, rung=rung) for rung in (1, 2))
    refused("cannot cancel rung 1 of release 'run'", ledger.cancel, first)
    assert ledger.verify().charges == 2


def test_a_rung_that_no_longer_fits_leaves_the_ones_before(ledger: Ledger) -> None:
    event = GaussianDpEvent(sigma_for(2, CAP))
    for rung in (1, 2):
        run(ledger, "chat", "run", event, rung)
    with pytest.raises(BudgetRefusedError):
        ledger.reserve("chat", "run", "d", event, rung=3)
    assert ledger.verify().outputs == 2


@pytest.mark.exhaustive
def test_many_rungs_stay_fast(ledger: Ledger) -> None:
    event, times = GaussianDpEvent(1000.0), []
    for rung in range(1, 301):
        begun = time.perf_counter()
        run(ledger, "chat", "run", event, rung)
        times.append(time.perf_counter() - begun)
    assert statistics.median(times[-50:]) < 3 * statistics.median(times[:50])
    assert sum(times) < 30
    assert ledger.verify().charges == 300


def test_what_protects_something_else_costs_nothing(ledger: Ledger) -> None:
    ledger.check("chat", EVENT, Protection())
    for other in (Protection(RECORD), Protection(USER, REPLACE), Protection(kind=SELECTIVE), Protection(kind=METRIC)):
        with pytest.raises(LedgerError, match="charge an account of the same unit, relation and kind"):
            ledger.reserve("chat", "run", "d", EVENT, protection=other)
        refused("charge an account of the same unit, relation and kind", ledger.check, "chat", EVENT, other)
    assert kinds(ledger) == ["create"]


def test_terms_that_do_not_go_together_open_nothing(ledger: Ledger) -> None:
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
def corpus(ledger: Ledger) -> Ledger:
    """Accounts of one corpus and of another."""
    ledger.create_account("phones", *TERMS, kind=SELECTIVE, policy="phones", corpus="mail")
    ledger.create_account("words", *TERMS, "metric", kind=METRIC, corpus="mail")
    ledger.create_account("central", *TERMS, corpus="mail")
    ledger.create_account("zcdp", RECORD, REPLACE, CAP, "zcdp", corpus="mail")
    ledger.create_account("other", *TERMS, corpus="news")
    assert [account.name for account in ledger.group("central")] == ["phones", "words", "zcdp"]
    assert ledger.group("chat") == []
    return ledger


def test_a_selective_run_exposes_the_central_accounts_of_its_corpus(corpus: Ledger) -> None:
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


def test_a_release_that_a_central_account_pays_for_exposes_nobody(corpus: Ledger) -> None:
    """Its charge has started: there is no way back from it."""
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


def test_a_central_account_opened_later_learns_what_has_happened(corpus: Ledger) -> None:
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
