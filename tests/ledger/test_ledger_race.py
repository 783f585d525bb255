"""Eight processes at once: the budget fits three releases, and three are what it pays for."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.synchronize import Barrier as BarrierType
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent

from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.core.errors import BudgetRefusedError
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.store import Ledger

PROCESSES, FIT, QUERIES = 8, 3, 10
CAP = Budget(3.0, 1e-6)
EVENT = SelfComposedDpEvent(GaussianDpEvent(sigma_for(FIT * QUERIES, CAP)), QUERIES)


def _open(url: str) -> Ledger:
    ledger = Ledger.open(url)
    ledger.ensure_account("chat", PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, CAP)
    return ledger


def _race_for_budget(url: str, number: int, barrier: BarrierType, results: Any) -> None:
    barrier.wait()  # also the creation of the file and of the account is raced for
    ledger = _open(url)
    try:
        charge = ledger.start(ledger.reserve("chat", f"run-{number}", "d", EVENT))
    except BudgetRefusedError:
        results.put("refused")
        return
    ledger.commit_output(charge, str(number).encode())
    results.put("paid")


def _race_for_output(url: str, number: int, barrier: BarrierType, results: Any) -> None:
    barrier.wait()
    ledger = _open(url)
    charge = ledger.start(ledger.reserve("chat", "run", "d", EVENT))
    ledger.commit_output(charge, str(number).encode())
    results.put(ledger.output(charge))


def _all(target: Callable[..., None], url: str) -> list[Any]:
    # Not "fork": the test process may hold the locks of torch's and Ray's threads, and a child would wait for ever.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rayprivacy.ledger.store", "rayprivacy.accounting.calibrate"])
    barrier, results = context.Barrier(PROCESSES), context.Queue()
    workers = [context.Process(target=target, args=(url, number, barrier, results)) for number in range(PROCESSES)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    return found


@pytest.mark.parametrize("again", range(2))
def test_racing_processes_cannot_overspend(url: str, again: int) -> None:
    found = _all(_race_for_budget, url)
    assert sorted(found) == ["paid"] * FIT + ["refused"] * (PROCESSES - FIT)
    report = Ledger.open(url).verify()
    assert (report.accounts, report.charges, report.outputs) == (1, FIT, FIT)


def test_racing_processes_of_one_release_share_one_charge_and_one_output(url: str) -> None:
    found = _all(_race_for_output, url)
    assert len(set(found)) == 1
    report = Ledger.open(url).verify()
    assert (report.charges, report.outputs, report.entries) == (1, 1, 4)
