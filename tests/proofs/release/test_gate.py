"""The gate: one charge, one stored output, whatever is asked again and wherever the process dies."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rayprivacy.accounting.accountant import total_mu_squared
from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.accounting.events import MetricLocalDpEvent
from rayprivacy.accounting.gaussian import mu_of
from rayprivacy.core.errors import BudgetRefusedError, RayPrivacyError, ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.core.private import RELEASE_SEAL, Private, digest_file, digest_json
from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit, Protection
from rayprivacy.ledger.book import Tail
from rayprivacy.ledger.charges import ChargeState
from rayprivacy.ledger.store import Ledger
from rayprivacy.release.files import FileRelease, release_file
from rayprivacy.release.gate import Asked, Gate, VoteManifest
from rayprivacy.release.histogram import HistogramMechanism
from rayprivacy.release.votes import SCALE, VoteMechanism

QUERIES, CANDIDATES, TEACHERS = 4, 3, 5
MECHANISM = VoteMechanism(QUERIES, CANDIDATES, TEACHERS, sigma_for(QUERIES, Budget(1.0, 1e-6)))
CENTRED = replace(MECHANISM, clip=0.2)
HISTOGRAM = HistogramMechanism(CANDIDATES, sigma=5.0)
VOTED = np.broadcast_to([0.1, 0.1, 0.8], (QUERIES, TEACHERS, CANDIDATES))
SUMS: dict[Any, Any] = {
    MECHANISM: np.full((QUERIES, CANDIDATES), TEACHERS * SCALE // CANDIDATES, dtype=np.int64),
    CENTRED: CENTRED.summed(VOTED, np.full((QUERIES, CANDIDATES), 1 / CANDIDATES)),
    HISTOGRAM: HISTOGRAM.contribution(np.array([[4, 0, 0], [1, 1, 0], [0, 0, 0], [0, 0, 9]])) * 100,
}
CORPUS, QUESTION = digest_json("corpus"), digest_json("question")
ASKED = Asked(CORPUS, QUESTION)
every = pytest.mark.parametrize("mechanism", SUMS, ids=["votes", "centred votes", "histogram"])


def _gate(path, epsilon=3.0, unit=PrivacyUnit.USER):
    ledger = Ledger.open(f"sqlite:///{path}/ledger.db")
    ledger.ensure_account("chat", unit, NeighbouringRelation.ADD_OR_REMOVE, Budget(epsilon, 1e-6))
    return Gate(ledger, "chat", Key.for_tests())


@pytest.fixture
def gate(tmp_path):
    return _gate(tmp_path)


def _release(
    gate,
    mechanism=MECHANISM,
    sums=None,
    release_id="run",
    asked=ASKED,
    teachers=range(TEACHERS),
):
    private = Private(SUMS[mechanism] if sums is None else sums)
    if isinstance(mechanism, HistogramMechanism):
        return gate.release_histogram(release_id, mechanism, private, asked=asked)
    return gate.release_votes(release_id, mechanism, private, VoteManifest(tuple(teachers)), asked=asked)


def _draws_no_more(monkeypatch):
    for kind in (VoteMechanism, HistogramMechanism):
        monkeypatch.setattr(kind, "draw", lambda *_: pytest.fail("drew"))


@every
def test_asking_again_is_served_from_the_ledger(tmp_path, monkeypatch, mechanism):
    first = _release(_gate(tmp_path), mechanism)
    assert (first.release_id, first.seal) == ("run", RELEASE_SEAL)
    assert (first.value.shape, first.value.dtype) == (SUMS[mechanism].shape, np.float64)
    assert mechanism is not CENTRED or (first.value < 0).any()
    _draws_no_more(monkeypatch)
    assert first.value.tobytes() == _release(_gate(tmp_path), mechanism).value.tobytes()
    (charge,) = _gate(tmp_path).ledger.charges_of("chat", "run")
    assert (charge.event, charge.state) == (mechanism.event, ChargeState.COMMITTED)
    report = _gate(tmp_path).ledger.verify()
    assert (report.charges, report.outputs) == (1, 1)


@pytest.mark.parametrize(
    ("mechanism", "fields"),
    [(MECHANISM, [{"clip": 0.2}, {"clip": 0.3}, {"ballot": "top1"}]), (HISTOGRAM, [{"sigma": 6.0}, {"sigma": 7.0}])],
)
def test_another_mechanism_is_another_charge(gate, mechanism, fields):
    zero = np.zeros(SUMS[mechanism].shape, dtype=np.int64)
    for its in ({}, *fields):
        _release(gate, replace(mechanism, **its), zero)
    assert len(gate.ledger.charges_of("chat", "run")) == 1 + len(fields)
    other = HISTOGRAM if mechanism is MECHANISM else MECHANISM
    assert _release(gate, other).value.shape == SUMS[other].shape  # one release id, and nothing is mixed
    assert len(gate.ledger.charges_of("chat", "run")) == 2 + len(fields)


@pytest.mark.parametrize(
    "asked", [Asked(digest_json("another"), QUESTION), Asked(CORPUS, digest_json("another")), Asked(QUESTION, CORPUS)]
)
@pytest.mark.parametrize("mechanism", [MECHANISM, HISTOGRAM], ids=["votes", "histogram"])
def test_another_corpus_or_question_is_another_charge_and_draw_though_the_answers_are_equal(gate, asked, mechanism):
    first = _release(gate, mechanism)
    assert not np.array_equal(first.value, _release(gate, mechanism, asked=asked).value)
    assert np.array_equal(first.value, _release(gate, mechanism).value)
    assert len({charge.input_digest for charge in gate.ledger.charges_of("chat", "run")}) == 2


@every
def test_the_same_question_is_one_charge_and_one_draw_though_the_answers_differ(gate, monkeypatch, mechanism):
    """In their last bit, as those of another machine do: how many charges there are says nothing of an answer."""
    first = _release(gate, mechanism)
    _draws_no_more(monkeypatch)
    assert np.array_equal(first.value, _release(gate, mechanism, SUMS[mechanism] - 1).value)
    assert len(gate.ledger.charges_of("chat", "run")) == 1


@pytest.mark.parametrize("field", ["corpus", "question"])
@pytest.mark.parametrize("value", ["", "topics", "A" * 64, "0" * 65, None, Private("0" * 64)])
def test_what_is_read_and_asked_is_named_by_digests(field, value):
    with pytest.raises(ReleaseError, match=f"asked.{field} is no digest of 64 hex digits"):
        replace(ASKED, **{field: value})


def test_the_ledger_holds_no_checkable_hash_of_what_is_asked(gate):
    _release(gate)
    _release(Gate(gate.ledger, "chat", Key(b"x" * 32)))
    assert len({charge.input_digest for charge in gate.ledger.charges_of("chat", "run")}) == 2


def test_budget_is_refused_before_noise_exists(gate, monkeypatch):
    fit = int(mu_of(Budget(3.0, 1e-6)) ** 2 / total_mu_squared([MECHANISM.event]))
    assert 3 < fit < 10  # mu^2 adds up, epsilon does not: more than three releases of epsilon 1 fit into epsilon 3
    for number in range(fit):
        _release(gate, release_id=f"run-{number}")
    _draws_no_more(monkeypatch)
    with pytest.raises(BudgetRefusedError, match="asks for epsilon 1 and account 'chat' has"):
        _release(gate, release_id="one-more")
    with pytest.raises(BudgetRefusedError):
        _release(gate, replace(HISTOGRAM, sigma=1.0), SUMS[HISTOGRAM])
    assert gate.ledger.verify().charges == fit


@pytest.mark.parametrize(
    "teachers", [(0, 1, 2, 3), (0, 1, 2, 3, 3), (0, 1, 2, 3, 4, 4), (0, 1, 2, 3, 5), (), (-1, 0, 1, 2, 3)]
)
def test_votes_missing_or_doubled_are_refused_before_any_charge(gate, teachers):
    with pytest.raises(ReleaseError, match="collect every teacher"):
        _release(gate, teachers=teachers)
    assert gate.ledger.charges_of("chat", "run") == []


@every
def test_sums_that_do_not_add_up_are_refused_before_any_charge(gate, mechanism):
    sums = SUMS[mechanism]
    for wrong in (sums.astype(np.float64), sums.astype(np.int32), sums[:2], sums[None], sums - 2**40, sums + 2**51):
        with pytest.raises(ReleaseError, match="sum"):
            _release(gate, mechanism, wrong)
    assert gate.ledger.charges_of("chat", "run") == []


def test_a_histogram_of_records_is_charged_to_an_account_of_records_alone(tmp_path):
    for unit in (PrivacyUnit.RECORD, PrivacyUnit.USER):
        (folder := tmp_path / unit.value).mkdir()
        gate = _gate(folder, unit=unit)
        with nullcontext() if unit is PrivacyUnit.RECORD else pytest.raises(RayPrivacyError, match="record"):
            _release(gate, replace(HISTOGRAM, unit=PrivacyUnit.RECORD), SUMS[HISTOGRAM])
        assert len(gate.ledger.charges_of("chat", "run")) == (unit is PrivacyUnit.RECORD)


def test_a_released_file_is_in_the_book_by_its_digest(tmp_path):
    """The whole output of version 1, by whose size it is known."""
    local = Protection(PrivacyUnit.USER, NeighbouringRelation.REPLACE, AccountKind.METRIC_LOCAL)
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    ledger.ensure_account("talk", local.unit, local.relation, Budget(100.0, 1e-6), "metric", kind=local.kind)
    event, places = MetricLocalDpEvent(1.0, 1.0, 8), (tmp_path / "out.parquet", tmp_path / "scratch")
    release = FileRelease("talk", "santext-1", "d" * 64, event, local, *places)
    released = release_file(ledger, release, lambda path: path.write_bytes(b"text") and None)
    (charge,) = ledger.charges_of("talk", "santext-1")
    assert ledger.output(charge) == digest_file(released.value).encode()
    assert len(ledger.output(charge)) == 64
    again = release_file(ledger, release, lambda path: pytest.fail("written twice"))
    assert again.value.read_bytes() == b"text"


def _die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def _before(owner, name):
    setattr(owner, name, _die)


def _after(owner, name, when=lambda **_: True):
    real = getattr(owner, name)

    def call_and_die(*args, **kwargs):
        result = real(*args, **kwargs)
        if when(**kwargs):
            _die()
        return result

    setattr(owner, name, call_and_die)


def _at_entry(wanted):
    _after(Tail, "append", lambda kind, **_: kind == wanted)


CRASHES: dict[str, tuple[Callable[[], None], ChargeState | None]] = {
    "before reserve": (lambda: _before(Ledger, "reserve"), None),
    "inside reserve": (lambda: _at_entry("reserve"), None),
    "after reserve": (lambda: _after(Ledger, "reserve"), ChargeState.RESERVED),
    "inside start": (lambda: _at_entry("start"), ChargeState.RESERVED),
    "after start": (lambda: _after(Ledger, "start"), ChargeState.STARTED),
    "after draw": (lambda: _after(VoteMechanism, "draw"), ChargeState.STARTED),
    "inside commit": (lambda: _at_entry("commit"), ChargeState.STARTED),
    "after commit": (lambda: _after(Ledger, "commit_output"), ChargeState.COMMITTED),
    "before reading back": (lambda: _before(Ledger, "output"), ChargeState.COMMITTED),
}


def _crash(path, point):
    gate = _gate(path)
    CRASHES[point][0]()
    _release(gate)


@pytest.mark.parametrize("point", CRASHES)
def test_a_killed_release_is_resumed_with_one_charge_and_one_output(tmp_path, point):
    state = CRASHES[point][1]
    # Not "fork": the test process may hold the locks of torch's and Ray's threads, and a child would wait for ever.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rayprivacy.release.gate", "rayprivacy.accounting.calibrate"])
    for attempt in range(2):  # dying twice at the same point is no different
        process = context.Process(target=_crash, args=(tmp_path, point))
        process.start()
        process.join()
        served = attempt == 1 and point == "after commit"  # the second run had nothing left to commit
        assert process.exitcode == (0 if served else -signal.SIGKILL)
    gate = _gate(tmp_path)
    left = gate.ledger.charges_of("chat", "run")
    assert [charge.state for charge in left] == ([state] if state else [])
    stored = gate.ledger.output(left[0]) if left else None
    first, second = _release(gate), _release(gate)
    assert np.array_equal(first.value, second.value)
    report = gate.ledger.verify()
    assert (report.charges, report.outputs) == (1, 1)
    assert report.entries <= 6  # create, reserve, start, commit, and a take-over for each process that died
    if stored is not None:
        assert stored == gate.ledger.output(gate.ledger.charges_of("chat", "run")[0])
