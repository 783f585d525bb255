"""Releases charged in chunks, accounts that protect different things, and accounts that share a corpus."""

import statistics
import time
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent

from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.accounting.metric import MetricLocalDpEvent
from rayprivacy.core.errors import BudgetRefusedError, ConfigError, EventError, LedgerError
from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit, Protection
from rayprivacy.ledger.certificate import EXPOSED_WARNING, build_certificate
from rayprivacy.ledger.charges import ChargeState
from rayprivacy.ledger.store import Ledger

USER, RECORD = PrivacyUnit.USER, PrivacyUnit.RECORD
ADD, REPLACE = NeighbouringRelation.ADD_OR_REMOVE, NeighbouringRelation.REPLACE
SELECTIVE, METRIC = AccountKind.SELECTIVE, AccountKind.METRIC_LOCAL
CAP = Budget(3.0, 1e-6)
EVENT = GaussianDpEvent(20.0)
METRIC_EVENT = MetricLocalDpEvent(0.01, 1.0, 10)


def _run_rung(ledger: Ledger, rung: int) -> bytes | None:
    charge = ledger.start(ledger.reserve("chat", "run", "d", EVENT, rung=rung))
    ledger.commit_output(charge, b"rung %d" % rung)
    return ledger.output(charge)


def test_each_rung_is_charged_and_served_on_its_own(ledger: Ledger) -> None:
    assert [_run_rung(ledger, rung) for rung in (1, 2, 3)] == [b"rung 1", b"rung 2", b"rung 3"]
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


def test_the_rung_before_counts_only_for_the_same_input(ledger: Ledger) -> None:
    ledger.reserve("chat", "run", "d", EVENT, rung=1)
    for release, digest in (("run", "e"), ("other", "d")):
        with pytest.raises(LedgerError, match="comes before rung 1"):
            ledger.reserve("chat", release, digest, EVENT, rung=2)


def test_after_a_cancelled_rung_the_next_is_refused(ledger: Ledger) -> None:
    _run_rung(ledger, 1)
    second = ledger.reserve("chat", "run", "d", EVENT, rung=2)
    ledger.cancel(second)
    with pytest.raises(LedgerError, match="rung 3 of release 'run' comes before rung 2"):
        ledger.reserve("chat", "run", "d", EVENT, rung=3)
    again = ledger.reserve("chat", "run", "d", EVENT, rung=2)
    assert again.id != second.id
    assert ledger.reserve("chat", "run", "d", EVENT, rung=3).rung == 3
    assert ledger.verify().charges == 4


def test_rungs_are_cancelled_from_the_last_one_down(ledger: Ledger) -> None:
    rungs = [ledger.reserve("chat", "run", "d", EVENT, rung=rung) for rung in (1, 2, 3)]
    ledger.reserve("chat", "run", "d", EVENT)  # rung 0 is another charge, which none stands on
    before = ledger.entries("chat")
    for rung in rungs[:2]:
        with pytest.raises(LedgerError, match=f"cannot cancel rung {rung.rung} of release 'run'"):
            ledger.cancel(rung)
    assert ledger.entries("chat") == before
    for rung in reversed(rungs):
        ledger.cancel(rung)
    assert [charge.is_live for charge in ledger.charges_of("chat", "run")] == [False, False, False, True]
    assert ledger.verify().charges == 4


def test_a_rung_has_one_event_and_others_may_have_another(ledger: Ledger) -> None:
    ledger.reserve("chat", "run", "d", EVENT, rung=1)
    with pytest.raises(LedgerError, match="is charged for"):
        ledger.reserve("chat", "run", "d", GaussianDpEvent(21.0), rung=1)
    assert ledger.reserve("chat", "run", "d", GaussianDpEvent(21.0), rung=2).rung == 2


@pytest.mark.parametrize("rung", [-1, 1.0, "1", True, 2**31, None])
def test_what_is_no_rung_is_refused(ledger: Ledger, rung: Any) -> None:
    with pytest.raises(LedgerError, match="rung is"):
        ledger.reserve("chat", "run", "d", EVENT, rung=rung)


def test_a_rung_that_no_longer_fits_leaves_the_ones_before(ledger: Ledger) -> None:
    event = GaussianDpEvent(sigma_for(2, CAP))
    for rung in (1, 2):
        ledger.commit_output(ledger.start(ledger.reserve("chat", "run", "d", event, rung=rung)), b"x")
    with pytest.raises(BudgetRefusedError):
        ledger.reserve("chat", "run", "d", event, rung=3)
    assert ledger.verify().outputs == 2


def test_many_rungs_stay_fast(ledger: Ledger) -> None:
    event, times = GaussianDpEvent(1000.0), []
    for rung in range(1, 301):
        begun = time.perf_counter()
        charge = ledger.start(ledger.reserve("chat", "run", "d", event, rung=rung))
        ledger.commit_output(charge, b"x")
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
    assert [entry.kind for entry in ledger.entries("chat")] == ["create"]
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
            call("other", USER, ADD, CAP, composition, **more)
    assert [account.name for account in ledger.accounts()] == ["chat"]
    assert ledger.verify().entries == 1


def test_a_metric_account_takes_metric_events_and_no_others(ledger: Ledger) -> None:
    ledger.create_account("words", USER, ADD, CAP, "metric", kind=METRIC)
    local = Protection(kind=METRIC)
    ledger.reserve("words", "run", "d", METRIC_EVENT, protection=local)
    with pytest.raises(EventError):
        ledger.reserve("words", "run-2", "d", EVENT, protection=local)
    with pytest.raises(EventError):
        ledger.reserve("chat", "run", "d", METRIC_EVENT)
    with pytest.raises(LedgerError, match="kept for"):
        ledger.reserve("words", "run-2", "d", METRIC_EVENT)
    assert ledger.verify().charges == 1


class Corpus:
    """Accounts of one corpus and of another, and a run of each kind that is not central."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        ledger.create_account("phones", USER, ADD, CAP, kind=SELECTIVE, policy="phones", corpus="mail")
        ledger.create_account("words", USER, ADD, CAP, "metric", kind=METRIC, corpus="mail")
        ledger.create_account("central", USER, ADD, CAP, corpus="mail")
        ledger.create_account("zcdp", RECORD, REPLACE, CAP, "zcdp", corpus="mail")
        ledger.create_account("other", USER, ADD, CAP, corpus="news")

    def run(self, account: str, release: str, event: Any = EVENT, rung: int = 0) -> None:
        protection = self.ledger.account(account).protection
        charge = self.ledger.reserve(account, release, "d", event, rung=rung, protection=protection)
        self.ledger.commit_output(self.ledger.start(charge), b"x")

    def exposures(self, account: str) -> list[str]:
        return [entry.release_id for entry in self.ledger.entries(account) if entry.kind == "exposure"]


@pytest.fixture
def corpus(ledger: Ledger) -> Corpus:
    return Corpus(ledger)


def test_a_selective_run_exposes_the_central_accounts_of_its_corpus(corpus: Corpus, ledger: Ledger) -> None:
    corpus.run("phones", "s1")
    corpus.run("words", "w1", METRIC_EVENT)
    corpus.run("phones", "s2", rung=1)
    corpus.run("phones", "s2", rung=2)
    corpus.run("phones", "s1")  # asked again: no new charge, no new exposure
    for account in ("central", "zcdp"):
        assert corpus.exposures(account) == ["s1", "w1", "s2", "s2"]
        assert ledger.status(account).exposures == 4
        assert ledger.status(account).balance.used == (0,)
        facts = [entry.facts for entry in ledger.entries(account) if entry.kind == "exposure"]
        assert facts[:2] == [
            {"account": "phones", "kind": "selective"},
            {"account": "words", "kind": "metric-local"},
        ]
    for account in ("chat", "other", "phones", "words"):
        assert corpus.exposures(account) == []
    assert ledger.verify().charges == 4


def test_a_central_run_exposes_nobody(corpus: Corpus, ledger: Ledger) -> None:
    corpus.run("central", "c1")
    corpus.run("zcdp", "z1", LaplaceDpEvent(20.0))
    assert not any(corpus.exposures(account.name) for account in ledger.accounts())
    assert ledger.verify().charges == 2


def test_a_release_that_a_central_account_pays_for_exposes_nobody(corpus: Corpus, ledger: Ledger) -> None:
    """Its charge has started: there is no way back from it."""
    corpus.run("central", "both")
    corpus.run("phones", "both")
    ledger.create_account("late", USER, ADD, CAP, corpus="mail")
    assert not any(corpus.exposures(account.name) for account in ledger.accounts())
    ledger.reserve("central", "reserved", "d", EVENT)
    corpus.run("phones", "reserved")
    corpus.run("central", "reserved")  # too late
    ledger.create_account("later", USER, ADD, CAP, corpus="mail")
    for account in ("central", "zcdp", "late", "later"):
        assert corpus.exposures(account) == ["reserved"]
    assert ledger.verify().charges == 4


def test_a_refused_run_exposes_nobody(corpus: Corpus, ledger: Ledger) -> None:
    with pytest.raises(BudgetRefusedError):
        corpus.run("phones", "s1", GaussianDpEvent(0.01))
    assert corpus.exposures("central") == []
    assert ledger.verify().charges == 0


def test_a_central_account_opened_later_learns_what_has_happened(corpus: Corpus, ledger: Ledger) -> None:
    corpus.run("phones", "s1")
    gone = ledger.reserve("phones", "s2", "d", EVENT, protection=Protection(kind=SELECTIVE))
    ledger.cancel(gone)
    ledger.create_account("late", USER, ADD, CAP, corpus="mail")
    ledger.create_account("late news", USER, ADD, CAP, corpus="news")
    ledger.create_account("late selective", USER, ADD, CAP, kind=SELECTIVE, policy="p", corpus="mail")
    assert corpus.exposures("late") == ["s1"]  # what was cancelled was never drawn
    assert corpus.exposures("central") == ["s1", "s2"]
    assert corpus.exposures("late news") == corpus.exposures("late selective") == []
    corpus.run("phones", "s3")
    assert corpus.exposures("late") == ["s1", "s3"]
    assert ledger.verify().accounts == 9


def test_the_certificate_lists_exposures_with_a_warning(corpus: Corpus, ledger: Ledger) -> None:
    corpus.run("central", "before")
    corpus.run("phones", "s1")
    corpus.run("central", "after")
    certificates = [_certificate(ledger, "central", release) for release in ("before", "after")]
    assert [c["warnings"] for c in certificates] == [[], [EXPOSED_WARNING]]
    assert certificates[0]["exposures"] == []
    assert certificates[1]["exposures"] == [{"account": "phones", "kind": "selective", "release_id": "s1"}]
    assert sorted(other["account"] for other in certificates[1]["other_accounts"]) == ["phones", "words", "zcdp"]
    corpus.run("other", "elsewhere")
    assert _certificate(ledger, "other", "elsewhere")["warnings"] == []


def test_an_existing_account_keeps_its_meaning(corpus: Corpus, ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="corpus is 'news' and account 'central' was created with 'mail'"):
        ledger.ensure_account("central", USER, ADD, CAP, corpus="news")
    with pytest.raises(LedgerError, match="composition is 'zcdp'"):
        ledger.ensure_account("central", USER, ADD, CAP, "zcdp", corpus="mail")
    with pytest.raises(LedgerError, match="kind is 'selective'"):
        ledger.ensure_account("central", USER, ADD, CAP, kind=SELECTIVE, policy="p", corpus="mail")
    assert [account.name for account in ledger.group("central")] == ["phones", "words", "zcdp"]
    assert ledger.group("chat") == []


def _certificate(ledger: Ledger, account: str, release: str) -> dict[str, Any]:
    return build_certificate(
        ledger,
        account,
        release,
        corpus_digest="c",
        run_request=Budget(1.0, 1e-6),
        assumptions=[],
        test_key=False,
        versions={},
        stages=[],
    )
