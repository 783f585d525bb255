"""The gate: one charge, one stored output, whatever is asked again and wherever the process dies."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayprivacy.accounting.accountant import total_mu_squared
from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.accounting.gaussian import mu_of
from rayprivacy.core.errors import BudgetRefusedError, ReleaseError
from rayprivacy.core.keys import Key
from rayprivacy.core.private import Private, Released, digest_json
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.book import Tail
from rayprivacy.ledger.charges import ChargeState
from rayprivacy.ledger.store import Ledger
from rayprivacy.release.gate import Asked, Gate, VoteManifest
from rayprivacy.release.votes import SCALE, VoteMechanism

QUERIES, CANDIDATES, TEACHERS = 4, 3, 5
MECHANISM = VoteMechanism(QUERIES, CANDIDATES, TEACHERS, sigma_for(QUERIES, Budget(1.0, 1e-6)))
MANIFEST = VoteManifest(tuple(range(TEACHERS)))
SUMS = np.full((QUERIES, CANDIDATES), TEACHERS * SCALE // CANDIDATES, dtype=np.int64)
CORPUS, QUESTION = digest_json("corpus"), digest_json("question")
ASKED = Asked(CORPUS, QUESTION)


def _gate(path: Path) -> Gate:
    ledger = Ledger.open(f"sqlite:///{path}/ledger.db")
    ledger.ensure_account("chat", PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, Budget(3.0, 1e-6))
    return Gate(ledger, "chat", Key.for_tests())


def _release(
    gate: Gate, sums: np.ndarray[Any, Any] = SUMS, release_id: str = "run", asked: Asked = ASKED
) -> Released[Any]:
    return gate.release_votes(release_id, MECHANISM, Private(sums), MANIFEST, asked=asked)


def test_asking_again_is_served_from_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _release(_gate(tmp_path))
    assert first.value.shape == (QUERIES, CANDIDATES)
    assert first.value.dtype == np.float64
    monkeypatch.setattr(VoteMechanism, "draw", lambda *_: pytest.fail("drew twice"))
    again = _release(_gate(tmp_path))
    assert np.array_equal(first.value, again.value)
    assert len(_gate(tmp_path).ledger.charges_of("chat", "run")) == 1


def test_centred_votes_are_released_below_zero_and_served_again_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mechanism = replace(MECHANISM, clip=0.2)
    vote, centre = np.array([0.1, 0.1, 0.8]), np.full((QUERIES, CANDIDATES), 1 / CANDIDATES)
    sums = mechanism.summed(np.broadcast_to(vote, (QUERIES, TEACHERS, CANDIDATES)), centre)
    assert sums.min() < 0
    first = _gate(tmp_path).release_votes("run", mechanism, Private(sums), MANIFEST, asked=ASKED)
    assert (first.value < 0).any()
    monkeypatch.setattr(VoteMechanism, "draw", lambda *_: pytest.fail("drew twice"))
    again = _gate(tmp_path).release_votes("run", mechanism, Private(sums), MANIFEST, asked=ASKED)
    assert first.value.tobytes() == again.value.tobytes()
    assert _gate(tmp_path).ledger.verify().charges == 1


def test_another_clip_ballot_or_noise_is_another_charge(tmp_path: Path) -> None:
    gate = _gate(tmp_path)
    zero = Private(np.zeros((QUERIES, CANDIDATES), dtype=np.int64))
    for fields in ({}, {"clip": 0.2}, {"clip": 0.3}, {"ballot": "top1"}):
        gate.release_votes("run", replace(MECHANISM, **fields), zero, MANIFEST, asked=ASKED)
    assert len(gate.ledger.charges_of("chat", "run")) == 4


@pytest.mark.parametrize(
    "asked", [Asked(digest_json("another"), QUESTION), Asked(CORPUS, digest_json("another")), Asked(QUESTION, CORPUS)]
)
def test_another_corpus_or_question_is_another_charge_and_draw_though_the_answers_are_equal(
    tmp_path: Path, asked: Asked
) -> None:
    gate = _gate(tmp_path)
    first = _release(gate)
    assert not np.array_equal(first.value, _release(gate, asked=asked).value)
    assert np.array_equal(first.value, _release(gate).value)
    assert len(gate.ledger.charges_of("chat", "run")) == 2


def test_the_same_question_is_one_charge_and_one_draw_though_the_answers_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their last bit, as those of another machine do: how many charges there are says nothing of an answer."""
    gate, other = _gate(tmp_path), SUMS.copy()
    other[0, 0] -= 1
    first = _release(gate)
    monkeypatch.setattr(VoteMechanism, "draw", lambda *_: pytest.fail("drew twice"))
    assert np.array_equal(first.value, _release(gate, other).value)
    assert len(gate.ledger.charges_of("chat", "run")) == 1


@pytest.mark.parametrize("field", ["corpus", "question"])
@pytest.mark.parametrize("value", ["", "topics", "A" * 64, "0" * 65, None, Private("0" * 64)])
def test_what_is_read_and_asked_is_named_by_digests(field: str, value: Any) -> None:
    with pytest.raises(ReleaseError, match=f"asked.{field} is no digest of 64 hex digits"):
        replace(ASKED, **{field: value})


def test_the_ledger_holds_no_checkable_hash_of_what_is_asked(tmp_path: Path) -> None:
    gate = _gate(tmp_path)
    _release(gate)
    other = Gate(gate.ledger, "chat", Key(b"x" * 32))
    _release(other)
    assert len({charge.input_digest for charge in gate.ledger.charges_of("chat", "run")}) == 2


def test_budget_is_refused_before_noise_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = _gate(tmp_path)
    fit = int(mu_of(Budget(3.0, 1e-6)) ** 2 / total_mu_squared([MECHANISM.event]))
    assert 3 < fit < 10  # mu^2 adds up, epsilon does not: more than three releases of epsilon 1 fit into epsilon 3
    for number in range(fit):
        _release(gate, release_id=f"run-{number}")
    monkeypatch.setattr(VoteMechanism, "draw", lambda *_: pytest.fail("drew without a charge"))
    with pytest.raises(BudgetRefusedError, match="asks for epsilon 1 and account 'chat' has"):
        _release(gate, release_id="one-more")
    assert gate.ledger.verify().charges == fit


@pytest.mark.parametrize(
    "teachers", [(0, 1, 2, 3), (0, 1, 2, 3, 3), (0, 1, 2, 3, 4, 4), (0, 1, 2, 3, 5), (), (-1, 0, 1, 2, 3)]
)
def test_votes_missing_or_doubled_are_refused_before_any_charge(tmp_path: Path, teachers: tuple[int, ...]) -> None:
    gate = _gate(tmp_path)
    with pytest.raises(ReleaseError, match="collect every teacher"):
        gate.release_votes("run", MECHANISM, Private(SUMS), VoteManifest(teachers), asked=ASKED)
    assert gate.ledger.charges_of("chat", "run") == []


@pytest.mark.parametrize(
    "sums",
    [SUMS.astype(np.float64), SUMS.astype(np.int32), SUMS[:2], SUMS.reshape(-1), SUMS - 2**40, SUMS * 2**30, SUMS * 10],
)
def test_sums_that_no_votes_add_up_to_are_refused_before_any_charge(tmp_path: Path, sums: np.ndarray[Any, Any]) -> None:
    gate = _gate(tmp_path)
    with pytest.raises(ReleaseError, match="sum"):
        _release(gate, sums)
    assert gate.ledger.charges_of("chat", "run") == []


def _die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _before(owner: Any, name: str) -> None:
    setattr(owner, name, _die)


def _after(owner: Any, name: str, when: Callable[..., bool] = lambda **_: True) -> None:
    real = getattr(owner, name)

    def call_and_die(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        if when(**kwargs):
            _die()
        return result

    setattr(owner, name, call_and_die)


CRASHES: dict[str, tuple[Callable[[], None], ChargeState | None]] = {
    "before reserve": (lambda: _before(Ledger, "reserve"), None),
    "inside reserve": (lambda: _after(Tail, "append", lambda kind, **_: kind == "reserve"), None),
    "after reserve": (lambda: _after(Ledger, "reserve"), ChargeState.RESERVED),
    "inside start": (lambda: _after(Tail, "append", lambda kind, **_: kind == "start"), ChargeState.RESERVED),
    "after start": (lambda: _after(Ledger, "start"), ChargeState.STARTED),
    "after draw": (lambda: _after(VoteMechanism, "draw"), ChargeState.STARTED),
    "inside commit": (lambda: _after(Tail, "append", lambda kind, **_: kind == "commit"), ChargeState.STARTED),
    "after commit": (lambda: _after(Ledger, "commit_output"), ChargeState.COMMITTED),
    "before reading back": (lambda: _before(Ledger, "output"), ChargeState.COMMITTED),
}


def _crash(path: Path, point: str) -> None:
    gate = _gate(path)
    CRASHES[point][0]()
    _release(gate)


@pytest.mark.parametrize("point", CRASHES)
def test_a_killed_release_is_resumed_with_one_charge_and_one_output(tmp_path: Path, point: str) -> None:
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
