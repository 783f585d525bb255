"""Accounts, charges, states, budget: the book says what happened, and what cannot happen is refused."""

import math
import stat
from pathlib import Path

import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, LaplaceDpEvent, SelfComposedDpEvent
from effort import COSTLY
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine, inspect, make_url

from rayprivacy.accounting.calibrate import sigma_for
from rayprivacy.core.errors import BudgetRefusedError, ConfigError, EventError, LedgerError
from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.chain import GENESIS
from rayprivacy.ledger.charges import ChargeState
from rayprivacy.ledger.store import Ledger

USER, RECORD = PrivacyUnit.USER, PrivacyUnit.RECORD
ADD, REPLACE = NeighbouringRelation.ADD_OR_REMOVE, NeighbouringRelation.REPLACE
CAP = Budget(3.0, 1e-6)


def test_the_file_is_private_and_reopens(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ledger.db"
    Ledger.open(f"sqlite:///{path}").create_account("chat", USER, ADD, CAP)
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
    with Ledger.open(url) as ledger:
        ledger.create_account("chat", USER, ADD, CAP)
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


def test_accounts_are_fixed(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="exists"):
        ledger.create_account("chat", USER, ADD, CAP)
    with pytest.raises(ConfigError, match="composition"):
        ledger.create_account("other", USER, ADD, CAP, composition="prv")
    assert ledger.ensure_account("chat", USER, ADD, Budget(9.0, 1e-3)).epsilon == 3.0
    for unit, relation in ((RECORD, ADD), (USER, REPLACE)):
        with pytest.raises(LedgerError, match="was created with"):
            ledger.ensure_account("chat", unit, relation, CAP)
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
    assert [entry.kind for entry in ledger.entries("chat")] == ["create", "reserve", "start", "commit"]
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


@pytest.mark.parametrize(
    "event",
    [GaussianDpEvent(math.nan), GaussianDpEvent(math.inf), LaplaceDpEvent(1.0), ComposedDpEvent([LaplaceDpEvent(1.0)])],
)
def test_what_the_filter_cannot_price_is_refused(ledger: Ledger, event: object) -> None:
    with pytest.raises(EventError):
        ledger.reserve("chat", "run", "d", event)
    assert ledger.status("chat").balance.used == (0,)


def test_names_have_limits(ledger: Ledger) -> None:
    for release_id, digest in (("", "d"), ("r" * 201, "d"), ("r", ""), ("r", "d" * 65)):
        with pytest.raises(LedgerError, match="characters"):
            ledger.reserve("chat", release_id, digest, GaussianDpEvent(50.0))
    with pytest.raises(LedgerError, match="holds chat"):
        ledger.reserve("nope", "r", "d", GaussianDpEvent(50.0))


def test_an_older_copy_of_the_file_is_noticed(sqlite_url: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = Ledger.open(sqlite_url)
    ledger.create_account("chat", USER, ADD, CAP)
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
    with Ledger.open(sqlite_url) as ledger:
        ledger.create_account("chat", USER, ADD, CAP)
        assert log.exists()
    assert not log.exists()  # the last connection moves the log into the file
    with pytest.raises(LedgerError, match="exists"), Ledger.open(sqlite_url) as ledger:
        ledger.create_account("chat", USER, ADD, CAP)
    assert not log.exists()


def test_a_file_that_was_moved_away_is_noticed(sqlite_url: str, tmp_path: Path) -> None:
    ledger = Ledger.open(sqlite_url)
    ledger.create_account("chat", USER, ADD, CAP)
    (tmp_path / "ledger.db").rename(tmp_path / "elsewhere.db")
    with pytest.raises(LedgerError, match="replaced while it was in use"):
        ledger.reserve("chat", "run", "d", GaussianDpEvent(50.0))
    assert not (tmp_path / "ledger.db").exists()


def test_an_older_copy_written_over_the_file_is_noticed(sqlite_url: str, tmp_path: Path) -> None:
    ledger = Ledger.open(sqlite_url)
    ledger.create_account("chat", USER, ADD, CAP)
    ledger.close()
    copy = (tmp_path / "ledger.db").read_bytes()
    ledger.reserve("chat", "run", "d", GaussianDpEvent(50.0))
    ledger.close()
    (tmp_path / "ledger.db").write_bytes(copy)
    with pytest.raises(LedgerError, match="older copy"):
        ledger.reserve("chat", "run-2", "d", GaussianDpEvent(50.0))


steps = st.lists(
    st.tuples(st.sampled_from(["reserve", "start", "commit", "cancel"]), st.integers(0, 3), st.floats(0.6, 6.0)),
    max_size=12,
)


@given(steps)
@COSTLY
def test_any_sequence_of_calls_leaves_a_book_that_replays(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, float]]
) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path_factory.mktemp('book')}/ledger.db")
    ledger.create_account("chat", USER, ADD, CAP)
    for verb, number, sigma in steps:
        try:
            charge = ledger.find_charge("chat", str(number), "d")
            if verb == "reserve":
                ledger.reserve("chat", str(number), "d", GaussianDpEvent(sigma))
            elif charge and verb == "commit":
                ledger.commit_output(charge, f"{number} {sigma}".encode())
            elif charge:
                (ledger.start if verb == "start" else ledger.cancel)(charge)
        except (LedgerError, BudgetRefusedError):
            continue
    report, status = ledger.verify(), ledger.status("chat")
    assert status.share <= 1
    assert report.head == ledger.head()
    assert report.entries == len(ledger.entries("chat"))
