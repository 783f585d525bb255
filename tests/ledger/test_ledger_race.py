"""Many processes at once: the budget fits some of them, and that many are what it pays for."""

import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier as BarrierType
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from effort import EFFORT
from processes import forkserver
from timeouts import patience
from usual import CAP, opened

from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.core.errors import BudgetRefusedError, LeaseHeldError
from rayprivacy.ledger.charges import ChargeState
from rayprivacy.ledger.store import Ledger

QUERIES = 10
FEW = (8, 3)
MANY = (32, 10) if EFFORT == 1 else (64, 20)


def _event(fit: int) -> SelfComposedDpEvent:
    return SelfComposedDpEvent(GaussianDpEvent(sigma_for(fit * QUERIES, CAP)), QUERIES)


def _race_for_budget(url: str, number: int, fit: int, barrier: BarrierType, results: Any) -> None:
    barrier.wait()  # also the creation of the file and of the account is raced for
    ledger = opened(url)
    try:
        charge = ledger.start(ledger.reserve("chat", f"run-{number}", "d", _event(fit)))
    except BudgetRefusedError:
        results.put("refused")
        return
    ledger.commit_output(charge, str(number).encode())
    results.put("paid")


def _race_for_output(url: str, number: int, fit: int, barrier: BarrierType, results: Any) -> None:
    barrier.wait()
    ledger = opened(url)
    charge = ledger.reserve("chat", "run", "d", _event(fit))
    drew = False
    while charge.state is not ChargeState.COMMITTED:
        try:
            charge = ledger.start(charge)
        except LeaseHeldError:
            time.sleep(0.02)  # the holder is drawing
            continue
        if charge.state is ChargeState.STARTED:
            drew = True
            ledger.commit_output(charge, str(number).encode())
    results.put((drew, ledger.output(charge)))


def _reporting(target: Callable[..., None], *arguments: Any) -> None:
    try:
        target(*arguments)
    except Exception as error:  # noqa: BLE001  # nobody waits in vain
        arguments[-1].put(repr(error))


def _all(target: Callable[..., None], url: str, processes: int, fit: int) -> list[Any]:
    context = forkserver()
    barrier, results = context.Barrier(processes), context.Queue()
    arguments = [(url, number, fit, barrier, results) for number in range(processes)]
    workers = [context.Process(target=_reporting, args=(target, *each)) for each in arguments]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=patience(120)) for _ in workers]
    for worker in workers:
        worker.join()
    return found


@pytest.mark.parametrize(("processes", "fit"), [FEW, MANY])
def test_racing_processes_cannot_overspend(url: str, processes: int, fit: int) -> None:
    found = _all(_race_for_budget, url, processes, fit)
    assert sorted(found, key=str) == ["paid"] * fit + ["refused"] * (processes - fit)
    ledger = Ledger.open(url)
    report = ledger.verify()
    assert (report.accounts, report.charges, report.outputs) == (1, fit, fit)
    assert 1 - 1e-6 < ledger.status("chat").share <= 1


def test_racing_processes_of_one_release_share_one_charge_and_one_output(url: str) -> None:
    found = _all(_race_for_output, url, *FEW)
    assert all(isinstance(each, tuple) for each in found), found
    assert [drew for drew, _ in found].count(True) == 1
    assert len({output for _, output in found}) == 1
    report = Ledger.open(url).verify()
    assert (report.charges, report.outputs, report.entries) == (1, 1, 4)
