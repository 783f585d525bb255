"""Whatever is changed in the file, verify names it."""

import sqlite3
from pathlib import Path

import pytest
from dp_accounting import GaussianDpEvent

from rayprivacy.core.errors import LedgerError
from rayprivacy.ledger import filter
from rayprivacy.ledger.store import Ledger


@pytest.fixture
def book(ledger: Ledger, tmp_path: Path) -> sqlite3.Connection:
    for number in range(2):
        charge = ledger.start(ledger.reserve("chat", f"run-{number}", "d", GaussianDpEvent(5.0)))
        ledger.commit_output(charge, b"output %d" % number)
    assert ledger.verify().entries == 7
    return sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)


def _without_triggers(book: sqlite3.Connection) -> None:
    for (name,) in book.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        book.execute(f"DROP TRIGGER {name}")


@pytest.mark.parametrize("table", ["accounts", "entries", "outputs"])
def test_the_tables_refuse_changes(book: sqlite3.Connection, table: str) -> None:
    for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET rowid = rowid + 100"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            book.execute(statement)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE entries SET events = replace(events, '5.0', '6.0') WHERE seq = 2", "entry 2 .* its hash"),
        ("UPDATE entries SET created_at = '' WHERE seq = 4", "entry 4 .* its hash"),
        ("UPDATE entries SET hash = replace(hash, substr(hash, 1, 1), 'x') WHERE seq = 3", "entry 3 .* its hash"),
        ("DELETE FROM entries WHERE seq = 3", "entry 3 .* follow"),
        ("DELETE FROM entries WHERE seq = 1", "entry 1 .* follow"),
        ("DELETE FROM entries WHERE seq = 7", "output of release 'run-1' .* committed"),
        ("UPDATE entries SET seq = CASE seq WHEN 3 THEN -4 WHEN 4 THEN -3 END WHERE seq IN (3, 4)", "entry 1"),
        ("UPDATE outputs SET blob = x'00' WHERE release_id = 'run-0'", "output of release 'run-0' .* committed"),
        ("UPDATE outputs SET release_id = 'run-1'", "names another release"),
        ("DELETE FROM outputs WHERE release_id = 'run-0'", "output of release 'run-0' .* missing"),
        ("UPDATE accounts SET epsilon = 30.0", "account 'chat' .* create entry"),
        ("UPDATE accounts SET created_at = ''", "account 'chat' .* create entry"),
        ("DELETE FROM accounts", "account 'chat' .* create entry"),
    ],
)
def test_a_change_behind_the_triggers_is_found(
    ledger: Ledger, book: sqlite3.Connection, statement: str, message: str
) -> None:
    _without_triggers(book)
    book.execute(statement)
    book.execute("UPDATE entries SET seq = -seq WHERE seq < 0")  # completes the swap of two rows
    with pytest.raises(LedgerError, match=message.replace("entry 1", "entry")):
        ledger.verify()


def test_an_altered_output_is_not_served(ledger: Ledger, book: sqlite3.Connection) -> None:
    charge = ledger.find_charge("chat", "run-0", "d")
    assert charge is not None
    _without_triggers(book)
    for statement in ("UPDATE outputs SET blob = x'00', digest = 'x'", "DELETE FROM outputs"):
        book.execute(statement)
        with pytest.raises(LedgerError, match="altered"):
            ledger.output(charge)


def test_a_cut_tail_needs_the_head_that_was_seen(url: str, ledger: Ledger, book: sqlite3.Connection) -> None:
    ledger.reserve("chat", "run-2", "d", GaussianDpEvent(5.0))
    head = ledger.head()
    _without_triggers(book)
    book.execute("DELETE FROM entries WHERE seq = 8")
    ledger.verify()  # the chain alone cannot know
    with pytest.raises(LedgerError, match="older copy"):
        Ledger.open(url, expected_head=head)


def test_verify_does_its_own_sums(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter, "fits", lambda *_: True)
    ledger.reserve("chat", "run", "d", GaussianDpEvent(1.0))
    with pytest.raises(LedgerError, match="exceeds the cap"):
        ledger.verify()
