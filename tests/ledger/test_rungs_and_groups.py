"""Releases charged in chunks, accounts that protect different things, and accounts that share a corpus."""

import statistics
import time
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent
from usual import CAP, METRIC, RECORD, REPLACE, SELECTIVE, TERMS, USER, exposures, kinds, run

from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.accounting.events import MetricLocalDpEvent
from rayprivacy.core.errors import BudgetRefusedError, ConfigError, LedgerError
from rayprivacy.core.units import Protection
from rayprivacy.ledger.charges import ChargeState
from rayprivacy.ledger.store import Ledger

EVENT = GaussianDpEvent(20.0)
METRIC_EVENT = MetricLocalDpEvent(0.01, 1.0, 10)


def test_each_rung_is_charged_and_served_on_its_own(ledger: Ledger) -> None:
    for rung in (1, 2, 3):
        run(ledger, "chat", "run", EVENT, rung, output=b"rung %d" % rung)
    used = ledger.status("chat").balance.committed
    for rung in (3, 1, 2):
        again = ledger.start(ledger.reserve("chat", "run", "d", EVENT, rung=rung))
        assert again.state is ChargeState.COMMITTED
        assert ledger.output(again) == b"rung %d" % rung
        assert ledger.find_charge("chat", "run", "d", rung) == again
    assert ledger.status("chat").balance.used == used
    assert [charge.rung for charge in ledger.charges_of("chat", "run")] == [1, 2, 3]
    assert ledger.verify().charges == 3


@pytest.mark.parametrize(("paid", "wanted"), [((), 2), ((1,), 3), ((1, 2), 4), ((0,), 2)])
def test_a_rung_needs_the_one_before(ledger: Ledger, paid: tuple[int, ...], wanted: int) -> None:
    for rung in paid:
        ledger.reserve("chat", "run", "d", EVENT, rung=rung)
    before = ledger.entries("chat")
    with pytest.raises(LedgerError, match=rf"rung {wanted} of release 'run' comes before rung {wanted - 1}"):
        ledger.reserve("chat", "run", "d", EVENT, rung=wanted)
    assert ledger.entries("chat") == before


def test_rungs_are_reserved_upwards_and_cancelled_downwards(ledger: Ledger) -> None:
    rungs = [ledger.reserve("chat", "run", "d", EVENT, rung=rung) for rung in (1, 2, 3)]
    ledger.reserve("chat", "run", "d", EVENT)  # rung 0 is another charge, which none stands on
    before = ledger.entries("chat")
    for release, digest in (("run", "e"), ("other", "d")):
        with pytest.raises(LedgerError, match="comes before rung 1"):
            ledger.reserve("chat", release, digest, EVENT, rung=2)
    with pytest.raises(LedgerError, match="is charged for"):
        ledger.reserve("chat", "run", "d", GaussianDpEvent(21.0), rung=1)
    for rung in rungs[:2]:
        with pytest.raises(LedgerError, match=f"cannot cancel rung {rung.rung} of release 'run'"):
            ledger.cancel(rung)
    assert ledger.entries("chat") == before
    for rung in reversed(rungs[1:]):
        ledger.cancel(rung)
    with pytest.raises(LedgerError, match="rung 3 of release 'run' comes before rung 2"):
        ledger.reserve("chat", "run", "d", EVENT, rung=3)
    again = ledger.reserve("chat", "run", "d", GaussianDpEvent(21.0), rung=2)  # each rung has an event of its own
    assert again.id != rungs[1].id
    assert ledger.reserve("chat", "run", "d", EVENT, rung=3).rung == 3
    assert ledger.verify().charges == 6


@pytest.mark.parametrize("rung", [-1, 1.0, "1", True, 2**31, None])
def test_what_is_no_rung_is_refused(ledger: Ledger, rung: Any) -> None:
    with pytest.raises(LedgerError, match="rung is"):
        ledger.reserve("chat", "run", "d", EVENT, rung=rung)


def test_a_rung_that_no_longer_fits_leaves_the_ones_before(ledger: Ledger) -> None:
    event = GaussianDpEvent(sigma_for(2, CAP))
    for rung in (1, 2):
        run(ledger, "chat", "run", event, rung)
    with pytest.raises(BudgetRefusedError):
        ledger.reserve("chat", "run", "d", event, rung=3)
    assert ledger.verify().outputs == 2


def test_many_rungs_stay_fast(ledger: Ledger) -> None:
    event, times = GaussianDpEvent(1000.0), []
    for rung in range(1, 301):
        begun = time.perf_counter()
        ledger.commit_output(ledger.start(ledger.reserve("chat", "run", "d", event, rung=rung)), b"x")
        times.append(time.perf_counter() - begun)
    assert statistics.median(times[-50:]) < 3 * statistics.median(times[:50])
    assert sum(times) < 30
    assert ledger.verify().charges == 300


@pytest.mark.parametrize(
    "protection",
    [Protection(RECORD), Protection(USER, REPLACE), Protection(kind=SELECTIVE), Protection(kind=METRIC)],
)
def test_what_protects_something_else_costs_nothing(ledger: Ledger, protection: Protection) -> None:
    for call in (
        lambda: ledger.reserve("chat", "run", "d", EVENT, protection=protection),
        lambda: ledger.check("chat", EVENT, protection),
    ):
        with pytest.raises(LedgerError, match="charge an account of the same unit, relation and kind"):
            call()
    assert kinds(ledger) == ["create"]
    ledger.check("chat", EVENT, Protection())


@pytest.mark.parametrize(
    ("composition", "more"),
    [
        ("gdp", {"kind": SELECTIVE}),
        ("gdp", {"policy": "phones"}),
        ("metric", {"kind": METRIC, "policy": "phones"}),
        ("metric", {}),
        ("metric", {"kind": SELECTIVE, "policy": "phones"}),
        ("gdp", {"kind": METRIC}),
        ("rdp", {}),
        ("gdp", {"order": 8.0}),
        ("prv", {}),
    ],
)
def test_terms_that_do_not_go_together_open_nothing(ledger: Ledger, composition: str, more: Any) -> None:
    for call in (ledger.create_account, ledger.ensure_account):
        with pytest.raises(ConfigError):
            call("other", *TERMS, composition, **more)
    assert [account.name for account in ledger.accounts()] == ["chat"]
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
    run(corpus, "phones", "s1", EVENT)
    run(corpus, "words", "w1", METRIC_EVENT)
    run(corpus, "phones", "s2", EVENT, rung=1)
    run(corpus, "phones", "s2", EVENT, rung=2)
    run(corpus, "phones", "s1", EVENT)  # asked again: no new charge, no new exposure
    for account in ("central", "zcdp"):
        assert exposures(corpus, account) == ["s1", "w1", "s2", "s2"]
        assert corpus.status(account).exposures == 4
        assert corpus.status(account).balance.used == (0,)
        facts = [entry.facts for entry in corpus.entries(account) if entry.kind == "exposure"]
        assert facts[:2] == [
            {"account": "phones", "kind": "selective"},
            {"account": "words", "kind": "metric-local"},
        ]
    for account in ("chat", "other", "phones", "words"):
        assert exposures(corpus, account) == []
    assert corpus.verify().charges == 4


def test_a_central_run_exposes_nobody(corpus: Ledger) -> None:
    run(corpus, "central", "c1", EVENT)
    run(corpus, "zcdp", "z1", LaplaceDpEvent(20.0))
    assert not any(exposures(corpus, account.name) for account in corpus.accounts())
    assert corpus.verify().charges == 2


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


def test_a_refused_run_exposes_nobody(corpus: Ledger) -> None:
    with pytest.raises(BudgetRefusedError):
        run(corpus, "phones", "s1", GaussianDpEvent(0.01))
    assert exposures(corpus, "central") == []
    assert corpus.verify().charges == 0


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
