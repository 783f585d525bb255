"""What `rayprivacy ledger verify` must not pass: books that were written anew, and older copies of one."""

import json
import sqlite3
from pathlib import Path

import pytest
from commands import command
from dp_accounting import GaussianDpEvent
from usual import TERMS, run

from rayprivacy.core.keys import create_key, load_key
from rayprivacy.ledger.store import Ledger


def _book(folder: Path) -> tuple[str, str]:
    """A ledger that is kept with a key, with one release: its URL, and its head."""
    url = f"sqlite:///{folder}/ledger.db"
    ledger = Ledger.open(url, key=create_key(folder / "key"))
    ledger.create_account("chat", *TERMS)
    run(ledger, "chat", "first", GaussianDpEvent(2.0))
    head = ledger.head()
    ledger.close()
    return url, head


def _write_anew(folder: Path) -> None:
    """Forget the release, and every mac: what somebody with the file and without the key can do."""
    with sqlite3.connect(folder / "ledger.db") as book:
        for (name,) in book.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            book.execute(f"DROP TRIGGER {name}")
        book.execute("DELETE FROM outputs")
        book.execute("DELETE FROM entries WHERE seq > 1")
        book.execute("UPDATE entries SET mac = ''")


def test_a_book_that_was_written_anew_and_then_continued_with_its_key_is_found(tmp_path: Path) -> None:
    url, head = _book(tmp_path)
    words = ["ledger", "verify", "--ledger", url, "--ledger-key", str(tmp_path / "key")]
    assert command(words, tmp_path).returncode == 0
    _write_anew(tmp_path)
    ledger = Ledger.open(url, key=load_key(tmp_path / "key"))
    ledger.reserve("chat", "second", "d", GaussianDpEvent(2.0))
    ledger.close()
    said = command(words, tmp_path)
    assert said.returncode != 0
    assert "checked from entry 2 on: it had no key before, or was written anew without it" in said.stderr
    said = command([*words, "--expected-head", head], tmp_path)
    assert said.returncode != 0
    assert "lacks the entry" in said.stderr


def test_a_book_that_was_keyed_later_is_intact_for_who_knows_an_entry_of_before(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger = Ledger.open(url)
    ledger.create_account("chat", *TERMS)
    before = ledger.head()
    ledger.close()
    keyed = Ledger.open(url, key=create_key(tmp_path / "key"))
    keyed.reserve("chat", "first", "d", GaussianDpEvent(2.0))
    keyed.close()
    words = ["ledger", "verify", "--ledger", url, "--ledger-key", str(tmp_path / "key")]
    assert command(words, tmp_path).returncode != 0
    said = command([*words, "--expected-head", before], tmp_path)
    assert (said.returncode, said.stderr) == (0, "")
    assert "authentication checked from entry 2 on" in said.stdout


def test_what_would_be_left_out_of_the_check_is_refused(tmp_path: Path) -> None:
    url, head = _book(tmp_path)
    (tmp_path / "certificate.json").write_text(json.dumps({"ledger_head": head}))
    words = ["ledger", "verify", "--ledger", url]
    certificate = ["--certificate", str(tmp_path / "certificate.json")]
    assert command([*words, *certificate], tmp_path).returncode == 0
    both = command([*words, *certificate, "--expected-head", "f" * 64], tmp_path)
    assert "either --certificate or --expected-head" in both.stderr
    key = command([*words, "--public-key", "nonsense"], tmp_path)
    assert "--public-key checks the signature of an export" in key.stderr
    assert 0 not in (both.returncode, key.returncode)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://user:pa@ss@localhost:abc/x", "privacy.ledger is no URL"),
        ("sqlite:////proc/none/ledger.db", "cannot be made or owned (No such file or directory)"),
    ],
)
def test_a_ledger_that_cannot_be_opened_is_refused_in_a_sentence(tmp_path: Path, url: str, says: str) -> None:
    words = ["ledger", "create", "--ledger", url, "--account", "a", "--epsilon", "3", "--delta", "1e-6"]
    said = command(words, tmp_path)
    assert said.returncode not in (0, None)
    assert says in said.stderr
    assert "Traceback" not in said.stderr
    assert "pa@ss" not in said.stderr
