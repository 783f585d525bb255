"""Whatever is changed in the database, verify names it."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from backdoor import Backdoor
from dp_accounting import GaussianDpEvent
from usual import opened, run

from rayprivacy.core.errors import LedgerError
from rayprivacy.ledger.rules import SumRule
from rayprivacy.ledger.store import Ledger


@pytest.fixture
def book(ledger: Ledger, backdoor: Backdoor) -> Backdoor:
    for number in range(2):
        run(ledger, "chat", f"run-{number}", GaussianDpEvent(5.0), output=b"output %d" % number)
    assert ledger.verify().entries == 7
    return backdoor


@pytest.mark.parametrize(("table", "column"), [("accounts", "epsilon"), ("entries", "seq"), ("outputs", "digest")])
def test_the_tables_refuse_changes(book: Backdoor, ledger: Ledger, table: str, column: str) -> None:
    statements = [f"DELETE FROM {table}", f"UPDATE {table} SET {column} = {column}"]
    for statement in statements + [f"TRUNCATE {table}"] * (not book.is_sqlite):
        with pytest.raises(book.refusals, match="append-only"):
            book.plain(statement)
    assert ledger.verify().entries == 7


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE entries SET events = replace(events, '5.0', '6.0') WHERE seq = 2", "entry 2 .* its hash"),
        ("UPDATE entries SET created_at = '' WHERE seq = 4", "entry 4 .* its hash"),
        ("UPDATE entries SET cost = replace(cost, '1', '2') WHERE seq = 5", "entry 5 .* its hash"),
        ("UPDATE entries SET balance = '' WHERE seq = 7", "entry 7 .* its hash"),
        ("UPDATE entries SET rung = 1 WHERE seq = 2", "entry 2 .* its hash"),
        ("UPDATE entries SET hash = replace(hash, substr(hash, 1, 1), 'x') WHERE seq = 3", "entry 3 .* its hash"),
        ("DELETE FROM entries WHERE seq = 3", "entry 3 .* follow"),
        ("DELETE FROM entries WHERE seq = 1", "entry 1 .* follow"),
        ("DELETE FROM entries WHERE seq = 7", "output of release 'run-1' .* committed"),
        ("UPDATE entries SET seq = CASE seq WHEN 3 THEN -4 WHEN 4 THEN -3 END WHERE seq IN (3, 4)", "entry 3"),
        ("UPDATE outputs SET blob = x'00' WHERE release_id = 'run-0'", "output of release 'run-0' .* committed"),
        ("UPDATE outputs SET release_id = 'run-1'", "names another release"),
        ("DELETE FROM outputs WHERE release_id = 'run-0'", "output of release 'run-0' .* missing"),
        ("UPDATE accounts SET epsilon = 30.0", "account 'chat' .* create entry"),
        ("UPDATE accounts SET kind = 'selective'", "account 'chat'"),
        ('UPDATE accounts SET parameters = \'{"policy": "p"}\'', "account 'chat'"),
        ("UPDATE accounts SET created_at = ''", "account 'chat' .* create entry"),
        ("DELETE FROM accounts", "account 'chat' .* create entry"),
    ],
)
def test_a_change_behind_the_triggers_is_found(ledger: Ledger, book: Backdoor, statement: str, message: str) -> None:
    book.execute(statement)
    book.execute("UPDATE entries SET seq = -seq WHERE seq < 0")  # completes the swap of two rows
    with pytest.raises(LedgerError, match=message):
        ledger.verify()


def test_an_altered_output_is_not_served(ledger: Ledger, book: Backdoor) -> None:
    charge = ledger.find_charge("chat", "run-0", "d")
    assert charge is not None
    for statement in ("UPDATE outputs SET blob = x'00', digest = 'x'", "DELETE FROM outputs"):
        book.execute(statement)
        with pytest.raises(LedgerError, match="altered"):
            ledger.output(charge)


def test_a_cut_tail_needs_the_head_that_was_seen(url: str, ledger: Ledger, book: Backdoor) -> None:
    ledger.reserve("chat", "run-2", "d", GaussianDpEvent(5.0))
    head = ledger.head()
    book.execute("DELETE FROM entries WHERE seq = 8")
    Ledger.open(url).verify()  # the chain alone cannot know
    with pytest.raises(LedgerError, match="older copy"):
        Ledger.open(url, expected_head=head)
    with pytest.raises(LedgerError, match="older copy"):
        Ledger.open(url).verify(expected_head=head)


def test_a_cut_tail_is_noticed_by_a_ledger_that_was_open(ledger: Ledger, book: Backdoor) -> None:
    charge = ledger.reserve("chat", "run-2", "d", GaussianDpEvent(5.0))
    book.execute("DELETE FROM entries WHERE seq >= 7")
    for call in (
        lambda: ledger.reserve("chat", "run-3", "d", GaussianDpEvent(5.0)),
        lambda: ledger.start(charge),
        lambda: ledger.cancel(charge),
    ):
        with pytest.raises(LedgerError, match="older copy"):
            call()
    assert book.plain("SELECT max(seq) FROM entries") == [(6,)]


def test_a_tail_written_anew_is_noticed_by_a_ledger_that_was_open(url: str, ledger: Ledger, book: Backdoor) -> None:
    ledger.reserve("chat", "run-2", "d", GaussianDpEvent(5.0))
    book.execute("DELETE FROM entries WHERE seq = 8")
    other = Ledger.open(url)
    other.reserve("chat", "run-4", "d", GaussianDpEvent(5.0))  # the book is as long again, and another one
    with pytest.raises(LedgerError, match="older copy"):
        ledger.reserve("chat", "run-3", "d", GaussianDpEvent(5.0))
    other.close()


def test_verify_does_its_own_sums(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SumRule, "admits", lambda *_: True)
    ledger.reserve("chat", "run", "d", GaussianDpEvent(1.0))
    with pytest.raises(LedgerError, match="exceeds the cap"):
        ledger.verify()


def test_a_cap_raised_past_the_triggers_admits_nothing(sqlite_url: str, tmp_path: Path) -> None:
    opened(sqlite_url).close()
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as book:
        row = list(book.execute("SELECT * FROM accounts").fetchone())
        row[row.index(3.0)] = 30.0
        book.execute(f"INSERT OR REPLACE INTO accounts VALUES ({', '.join('?' * len(row))})", row)  # fires no trigger
    with Ledger.open(sqlite_url) as ledger:
        with pytest.raises(LedgerError, match="differs from its create entry"):
            ledger.reserve("chat", "run", "d", GaussianDpEvent(0.5))
        with pytest.raises(LedgerError, match="create entry"):
            ledger.verify()


def test_a_row_that_differs_from_its_index_is_found(sqlite_url: str, tmp_path: Path) -> None:
    with opened(sqlite_url) as ledger:
        charge = run(ledger, "chat", "run", GaussianDpEvent(5.0), output=b"noisy")
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as book:
        book.execute("PRAGMA journal_mode=DELETE")
    content = path.read_bytes()
    where = content.find(charge.id.encode(), content.find(b"noisy") - 300)  # the row of the output, not its index
    path.write_bytes(content[:where] + b"X" + content[where + 1 :])
    with Ledger.open(sqlite_url) as ledger, pytest.raises(LedgerError):
        ledger.verify()
