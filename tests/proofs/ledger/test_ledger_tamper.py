"""Whatever is changed in the database, or written anew, verify names it."""

import json
import sqlite3
from contextlib import closing

import pytest
from backdoor import Backdoor
from commands import command
from dp_accounting import GaussianDpEvent
from usual import TERMS, opened, refused, run

from rayprivacy.core.errors import LedgerError
from rayprivacy.core.keys import create_key, load_key
from rayprivacy.ledger.store import Ledger

EVENT = GaussianDpEvent(5.0)


@pytest.fixture
def book(ledger, backdoor):
    for number in range(2):
        run(ledger, "chat", f"run-{number}", EVENT, output=b"output %d" % number)
    assert ledger.verify().entries == 7
    return backdoor


def test_the_tables_refuse_changes(book, ledger):
    for table, column in (("accounts", "epsilon"), ("entries", "seq"), ("outputs", "digest")):
        statements = [f"DELETE FROM {table}", f"UPDATE {table} SET {column} = {column}"]
        for statement in statements + [f"TRUNCATE {table}"] * (not book.is_sqlite):
            with pytest.raises(book.refusals, match="append-only"):
                book.plain(statement)
    assert ledger.verify().entries == 7


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE entries SET events = replace(events, '5.0', '6.0') WHERE seq = 2", "entry 2 .* its hash"),
        ("UPDATE entries SET hash = replace(hash, substr(hash, 1, 1), 'x') WHERE seq = 3", "entry 3 .* its hash"),
        ("DELETE FROM entries WHERE seq = 3", "entry 3 .* follow"),
        ("DELETE FROM entries WHERE seq = 7", "output of release 'run-1' .* committed"),
        ("UPDATE entries SET seq = CASE seq WHEN 3 THEN -4 WHEN 4 THEN -3 END WHERE seq IN (3, 4)", "entry 3"),
        ("UPDATE outputs SET blob = x'00' WHERE release_id = 'run-0'", "output of release 'run-0' .* committed"),
        ("UPDATE outputs SET release_id = 'run-1'", "names another release"),
        ("DELETE FROM outputs WHERE release_id = 'run-0'", "output of release 'run-0' .* missing"),
        ("UPDATE accounts SET epsilon = 30.0", "account 'chat' .* create entry"),
        ("DELETE FROM accounts", "account 'chat' .* create entry"),
    ],
)
def test_a_change_behind_the_triggers_is_found(ledger, book, statement, message):
    book.execute(statement)
    book.execute("UPDATE entries SET seq = -seq WHERE seq < 0")  # completes the swap of two rows
    refused(message, ledger.verify)


def test_an_altered_output_is_not_served(ledger, book):
    (charge,) = ledger.charges_of("chat", "run-0")
    for statement in ("UPDATE outputs SET blob = x'00', digest = 'x'", "DELETE FROM outputs"):
        book.execute(statement)
        refused("altered", ledger.output, charge)


def test_a_cut_tail_needs_the_head_that_was_seen(url, ledger, book):
    charge = ledger.reserve("chat", "run-2", "d", EVENT)
    head = ledger.head()
    book.execute("DELETE FROM entries WHERE seq = 8")
    Ledger.open(url).verify()  # the chain alone cannot know
    for call in (
        lambda: Ledger.open(url, expected_head=head),
        lambda: Ledger.open(url).verify(expected_head=head),
        lambda: ledger.reserve("chat", "run-3", "d", EVENT),  # it was open, and remembers
        lambda: ledger.start(charge),
        lambda: ledger.cancel(charge),
    ):
        refused("older copy", call)
    assert book.plain("SELECT max(seq) FROM entries") == [(7,)]
    with Ledger.open(url) as other:
        other.reserve("chat", "run-4", "d", EVENT)  # the book is as long again, and another one
    refused("older copy", ledger.reserve, "chat", "run-3", "d", EVENT)


def test_a_cap_raised_past_the_triggers_admits_nothing(sqlite_url, tmp_path):
    opened(sqlite_url).close()
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as book:
        row = list(book.execute("SELECT * FROM accounts").fetchone())
        row[row.index(3.0)] = 30.0
        book.execute(f"INSERT OR REPLACE INTO accounts VALUES ({', '.join('?' * len(row))})", row)  # fires no trigger
    with Ledger.open(sqlite_url) as ledger:
        refused("differs from its create entry", ledger.reserve, "chat", "run", "d", GaussianDpEvent(0.5))
        refused("create entry", ledger.verify)


def test_a_row_that_differs_from_its_index_is_found(sqlite_url, tmp_path):
    with opened(sqlite_url) as ledger:
        charge = run(ledger, "chat", "run", EVENT, output=b"noisy")
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as book:
        book.execute("PRAGMA journal_mode=DELETE")
    content = path.read_bytes()
    where = content.find(charge.id.encode(), content.find(b"noisy") - 300)  # the row of the output, not its index
    path.write_bytes(content[:where] + b"X" + content[where + 1 :])
    with Ledger.open(sqlite_url) as ledger, pytest.raises(LedgerError):
        ledger.verify()


# The command.


def _book(folder):
    """A ledger that is kept with a key, with one release: its URL, and its head."""
    url = f"sqlite:///{folder}/ledger.db"
    with Ledger.open(url, key=create_key(folder / "key")) as ledger:
        ledger.create_account("chat", *TERMS)
        run(ledger, "chat", "first", EVENT)
        return url, ledger.head()


def _write_anew(folder):
    """Forget the release, and every mac: what somebody with the file and without the key can do."""
    book = Backdoor(f"sqlite:///{folder}/ledger.db")
    for change in ("DELETE FROM outputs", "DELETE FROM entries WHERE seq > 1", "UPDATE entries SET mac = ''"):
        book.execute(change)
    book.close()


def test_a_book_that_was_written_anew_and_then_continued_with_its_key_is_found(tmp_path):
    url, head = _book(tmp_path)
    words = ["ledger", "verify", "--ledger", url, "--ledger-key", str(tmp_path / "key")]
    assert command(words, tmp_path).returncode == 0
    _write_anew(tmp_path)
    with Ledger.open(url, key=load_key(tmp_path / "key")) as ledger:
        ledger.reserve("chat", "second", "d", EVENT)
    for more, says in (
        ([], "checked from entry 2 on: it had no key before, or was written anew without it"),
        (["--expected-head", head], "lacks the entry"),
    ):
        said = command([*words, *more], tmp_path)
        assert said.returncode != 0
        assert says in said.stderr


def test_a_book_that_was_keyed_later_is_intact_for_who_knows_an_entry_before(sqlite_url, tmp_path):
    with opened(sqlite_url) as ledger:
        before = ledger.head()
    with Ledger.open(sqlite_url, key=create_key(tmp_path / "key")) as keyed:
        keyed.reserve("chat", "first", "d", EVENT)
    words = ["ledger", "verify", "--ledger", sqlite_url, "--ledger-key", str(tmp_path / "key")]
    assert command(words, tmp_path).returncode != 0
    said = command([*words, "--expected-head", before], tmp_path)
    assert (said.returncode, said.stderr) == (0, "")
    assert "authentication checked from entry 2 on" in said.stdout


def test_what_would_be_left_out_of_the_check_is_refused(tmp_path):
    url, head = _book(tmp_path)
    (tmp_path / "certificate.json").write_text(json.dumps({"ledger_head": head}))
    words = ["ledger", "verify", "--ledger", url]
    certificate = ["--certificate", str(tmp_path / "certificate.json")]
    assert command([*words, *certificate], tmp_path).returncode == 0
    for more, says in (
        ([*certificate, "--expected-head", "f" * 64], "either --certificate or --expected-head"),
        (["--public-key", "nonsense"], "--public-key checks the signature of an export"),
    ):
        said = command([*words, *more], tmp_path)
        assert said.returncode != 0
        assert says in said.stderr


def test_a_ledger_that_cannot_be_opened_is_refused_in_a_sentence(tmp_path):
    for url, says in (
        ("postgresql://user:pa@ss@localhost:abc/x", "privacy.ledger is no URL"),
        ("postgresql://user:pa@127.0.0.1:1/none?connect_timeout=2", "the ledger postgresql://127.0.0.1/none refuses"),
        ("sqlite:////proc/none/ledger.db", "cannot be made or owned (No such file or directory)"),
    ):
        words = ["ledger", "create", "--ledger", url, "--account", "a", "--epsilon", "3", "--delta", "1e-6"]
        said = command(words, tmp_path)
        assert said.returncode not in (0, None)
        assert says in said.stderr
        assert not any(word in said.stderr for word in ("Traceback", "pa@"))
