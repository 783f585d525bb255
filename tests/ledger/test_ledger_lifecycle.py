"""Accounts, charges, states, budget: the book says what happened, and what cannot happen is refused."""

import stat
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from sqlalchemy import create_engine, inspect, make_url
from usual import ADD, CAP, RECORD, REPLACE, SELECTIVE, TERMS, USER, kinds, opened

from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.core.errors import BudgetRefusedError, LedgerError
from rayprivacy.core.units import Budget
from rayprivacy.ledger.book import GENESIS
from rayprivacy.ledger.charges import ChargeState
from rayprivacy.ledger.store import Ledger


def test_the_file_is_private_and_reopens(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ledger.db"
    opened(f"sqlite:///{path}")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    again = Ledger.open(f"sqlite:///{path}")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert again.account("chat").budget == CAP


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "mysql://u:secret@h/d", "nonsense", "sqlite:///a?b=c"]
)
def test_only_a_sqlite_file_is_a_ledger(url: str) -> None:
    with pytest.raises(LedgerError, match=r"sqlite:///ledger\.db") as caught:
        Ledger.open(url)
    assert "secret" not in str(caught.value)


def test_another_file_is_not_a_ledger(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(LedgerError, match="is it a ledger"):
        Ledger.open(f"sqlite:///{tmp_path}/x.db")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ("DROP TABLE ledger_version", "earlier version of rayprivacy.* finish with that version"),
        ("UPDATE ledger_version SET version = 9999", "has schema 9999, and this version of rayprivacy reads 3"),
        ("INSERT INTO ledger_version VALUES (9999)", "has schema 3 and 9999"),
        ("DELETE FROM ledger_version", "has schema none"),
        ("ALTER TABLE ledger_version RENAME COLUMN version TO version_num", "refuses"),
    ],
)
def test_a_ledger_of_another_version_is_refused_and_left_alone(url: str, change: str, match: str) -> None:
    opened(url).close()
    engine = create_engine(make_url(url).set(drivername="sqlite" if "sqlite" in url else "postgresql+psycopg"))
    with engine.begin() as connection:
        connection.exec_driver_sql(change)
    tables = set(inspect(engine).get_table_names())
    with pytest.raises(LedgerError, match=match):
        Ledger.open(url)
    assert set(inspect(engine).get_table_names()) == tables
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT name FROM accounts").scalar() == "chat"
    engine.dispose()


@pytest.mark.parametrize(
    ("wanted", "match"),
    [
        ({"unit": RECORD}, "unit is 'record' and account 'chat' was created with 'user'"),
        ({"relation": REPLACE}, "relation is 'replace'"),
        ({"corpus": "news"}, "corpus is 'news' and account 'chat' was created with ''"),
        ({"composition": "zcdp"}, "composition is 'zcdp'"),
        ({"kind": SELECTIVE, "policy": "p"}, "kind is 'selective'"),
    ],
)
def test_an_account_keeps_its_terms(ledger: Ledger, wanted: dict[str, Any], match: str) -> None:
    with pytest.raises(LedgerError, match=match):
        ledger.ensure_account("chat", **{"unit": USER, "relation": ADD, "budget": CAP} | wanted)
    assert ledger.verify().entries == 1


def test_accounts_are_fixed(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="exists"):
        ledger.create_account("chat", *TERMS)
    assert ledger.ensure_account("chat", USER, ADD, Budget(9.0, 1e-3)).epsilon == 3.0
    ledger.ensure_account("mail", RECORD, REPLACE, CAP)
    assert [account.name for account in ledger.accounts()] == ["chat", "mail"]
    with pytest.raises(LedgerError, match="chat, mail"):
        ledger.account("nope")


def test_a_charge_lives_once(ledger: Ledger) -> None:
    event = SelfComposedDpEvent(GaussianDpEvent(20.0), 10)
    assert ledger.find_charge("chat", "run", "d") is None
    charge = ledger.reserve("chat", "run", "d", event)
    assert charge.state is ChargeState.RESERVED
    assert ledger.reserve("chat", "run", "d", event) == charge
    with pytest.raises(LedgerError, match="must be started"):
        ledger.commit_output(charge, b"x")
    assert ledger.output(charge) is None
    started = ledger.start(charge)
    assert ledger.start(charge) == started == ledger.find_charge("chat", "run", "d")
    with pytest.raises(LedgerError, match="must be reserved"):
        ledger.cancel(started)
    ledger.commit_output(started, b"first")
    ledger.commit_output(started, b"second")
    assert ledger.output(charge) == b"first"
    assert ledger.start(charge).state is ChargeState.COMMITTED
    assert kinds(ledger) == ["create", "reserve", "start", "commit"]
    assert ledger.verify().outputs == 1


def test_one_release_and_input_has_one_event(ledger: Ledger) -> None:
    ledger.reserve("chat", "run", "d", GaussianDpEvent(20.0))
    with pytest.raises(LedgerError, match="is charged for"):
        ledger.reserve("chat", "run", "d", GaussianDpEvent(21.0))
    ledger.reserve("chat", "run", "e", GaussianDpEvent(21.0))
    assert len(ledger.charges_of("chat", "run")) == 2


def test_cancelling_gives_back_and_a_new_attempt_is_a_new_charge(ledger: Ledger) -> None:
    event = GaussianDpEvent(sigma_for(1, CAP))
    charge = ledger.reserve("chat", "run", "d", event)
    with pytest.raises(BudgetRefusedError):
        ledger.reserve("chat", "run2", "d", event)
    assert ledger.cancel(charge) == ledger.cancel(charge)
    assert ledger.status("chat").balance.used == (0,)
    with pytest.raises(LedgerError, match="cancelled"):
        ledger.start(charge)
    again = ledger.reserve("chat", "run", "d", event)
    assert again.id != charge.id
    assert [c.state for c in ledger.charges_of("chat", "run")] == [ChargeState.CANCELLED, ChargeState.RESERVED]
    assert ledger.verify().charges == 2


def test_the_refusal_names_what_was_asked_and_what_is_left(ledger: Ledger) -> None:
    ledger.reserve("chat", "a", "d", GaussianDpEvent(sigma_for(1, Budget(2.0, 1e-6))))
    left = ledger.status("chat").epsilon_remaining
    request = SelfComposedDpEvent(GaussianDpEvent(sigma_for(50, Budget(2.5, 1e-6))), 50)
    for call in (lambda: ledger.check("chat", request), lambda: ledger.reserve("chat", "b", "d", request)):
        with pytest.raises(BudgetRefusedError, match=rf"epsilon 2\.5 and account 'chat' has {left:.6g} of 3 left"):
            call()
    rest = GaussianDpEvent(sigma_for(1, Budget(left, 1e-6)))
    ledger.check("chat", rest)
    ledger.reserve("chat", "b", "d", rest)
    status = ledger.status("chat")
    assert status.epsilon_remaining < 1e-3
    assert 0.999 < status.share <= 1
    assert status.epsilon_spent <= 3.0


def test_names_have_limits(ledger: Ledger) -> None:
    for release_id, digest in (("", "d"), ("r" * 201, "d"), ("r", ""), ("r", "d" * 65)):
        with pytest.raises(LedgerError, match="characters"):
            ledger.reserve("chat", release_id, digest, GaussianDpEvent(50.0))
    with pytest.raises(LedgerError, match="holds chat"):
        ledger.reserve("nope", "r", "d", GaussianDpEvent(50.0))


def test_an_older_copy_of_the_file_is_noticed(sqlite_url: str, tmp_path: Path) -> None:
    path, ledger = tmp_path / "ledger.db", opened(sqlite_url)
    ledger.close()  # the last connection moves the log into the file
    early, copy = ledger.head(), path.read_bytes()
    ledger.reserve("chat", "run", "d", GaussianDpEvent(50.0))
    late = ledger.head()
    for head in (early, late, GENESIS):
        again = Ledger.open(sqlite_url, expected_head=head)
        assert again.head() == late
        again.close()
    ledger.close()
    (tmp_path / "older.db").write_bytes(copy)
    (tmp_path / "older.db").rename(path)
    for call in (ledger.head, ledger.verify, lambda: ledger.reserve("chat", "run-2", "d", GaussianDpEvent(50.0))):
        with pytest.raises(LedgerError, match="replaced while it was in use"):
            call()
    with pytest.raises(LedgerError, match="older copy"):
        Ledger.open(sqlite_url, expected_head=late)
    assert Ledger.open(sqlite_url, expected_head=early).verify(early).charges == 0


def test_a_with_block_closes_the_ledger(sqlite_url: str, tmp_path: Path) -> None:
    log = tmp_path / "ledger.db-wal"
    with opened(sqlite_url):
        assert log.exists()
    assert not log.exists()  # the last connection moves the log into the file
    with pytest.raises(LedgerError, match="exists"), Ledger.open(sqlite_url) as ledger:
        ledger.create_account("chat", *TERMS)
    assert not log.exists()


def test_a_file_that_was_moved_away_is_noticed(sqlite_url: str, tmp_path: Path) -> None:
    ledger = opened(sqlite_url)
    (tmp_path / "ledger.db").rename(tmp_path / "elsewhere.db")
    with pytest.raises(LedgerError, match="replaced while it was in use"):
        ledger.reserve("chat", "run", "d", GaussianDpEvent(50.0))
    assert not (tmp_path / "ledger.db").exists()


def test_an_older_copy_written_over_the_file_is_noticed(sqlite_url: str, tmp_path: Path) -> None:
    ledger = opened(sqlite_url)
    ledger.close()
    copy = (tmp_path / "ledger.db").read_bytes()
    ledger.reserve("chat", "run", "d", GaussianDpEvent(50.0))
    ledger.close()
    (tmp_path / "ledger.db").write_bytes(copy)
    with pytest.raises(LedgerError, match="older copy"):
        ledger.reserve("chat", "run-2", "d", GaussianDpEvent(50.0))
