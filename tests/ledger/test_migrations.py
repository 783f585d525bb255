"""A ledger of the first schema is opened, migrated, goes on being charged, and still verifies."""

from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from dp_accounting import GaussianDpEvent
from sqlalchemy import create_engine, inspect, make_url, text

from rayprivacy.core.errors import BudgetRefusedError, LedgerError
from rayprivacy.ledger import database, schema
from rayprivacy.ledger.charges import ChargeState
from rayprivacy.ledger.store import Ledger

FIRST = (Path(__file__).parent / "first_schema.sql").read_text()
MU_SQUARED = {
    "started": 1 / 30.1**2 + 7 / 77.3**2,
    "committed": 100 / 48.8**2,
    "reserved": 1 / 11.0**2,
}


@pytest.fixture
def first_schema(url: str) -> str:
    engine = create_engine(make_url(url).set(drivername="sqlite" if "sqlite" in url else "postgresql+psycopg"))
    config = Config()
    config.set_main_option("script_location", str(database._MIGRATIONS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        for statement in FIRST.splitlines()[1:]:
            if engine.dialect.name == "postgresql":
                statement = statement.replace("X'", r"'\x")
            connection.exec_driver_sql(statement)
    engine.dispose()
    return url


def test_the_code_reads_the_newest_migration() -> None:
    assert ScriptDirectory(str(database._MIGRATIONS)).get_current_head() == schema.REVISION


def test_migrations_create_exactly_the_declared_tables(first_schema: str) -> None:
    ledger = Ledger.open(first_schema)
    with ledger.snapshot() as connection:
        seen = inspect(connection)
        for table in schema.metadata.sorted_tables:
            columns = {column["name"]: column["nullable"] for column in seen.get_columns(table.name)}
            assert columns == {column.name: column.nullable for column in table.columns}
            indexes = {index["name"] for index in seen.get_indexes(table.name)}
            assert {index.name for index in table.indexes} <= indexes


def test_a_book_of_the_first_schema_verifies_and_means_what_it_meant(first_schema: str) -> None:
    ledger = Ledger.open(first_schema)
    report = ledger.verify()
    assert (report.accounts, report.entries, report.charges, report.outputs) == (2, 11, 5, 1)
    (committed,) = ledger.charges_of("chat", "committed")
    assert ledger.output(committed) == b"noisy \x00\xff bytes"
    balance = ledger.status("chat").balance
    for state, expected in MU_SQUARED.items():
        assert getattr(balance, state)[0] / 2**80 == pytest.approx(expected, rel=1e-15)
    assert [line.state for line in ledger.lines("chat")] == ["committed", "started", "cancelled", "reserved"]


def test_it_goes_on_being_charged(first_schema: str) -> None:
    ledger = Ledger.open(first_schema)
    before = ledger.status("chat").balance
    (started,) = ledger.charges_of("chat", "started")
    ledger.commit_output(ledger.start(started), b"drawn by a newer version")
    (reserved,) = ledger.charges_of("chat", "reserved")
    ledger.cancel(reserved)
    again = ledger.reserve("chat", "committed", "d1", ledger.charges_of("chat", "committed")[0].event)
    assert again.state is ChargeState.COMMITTED
    after = ledger.status("chat").balance
    assert after.reserved == after.started == (0,)
    assert after.committed == (before.committed[0] + before.started[0],)
    with pytest.raises(BudgetRefusedError):
        ledger.reserve("chat", "too-much", "d", GaussianDpEvent(1.0))
    ledger.reserve("mail", "next", "d", GaussianDpEvent(50.0))
    report = ledger.verify()
    assert report.entries == 11 + 4  # take-over, commit, cancel, reserve
    assert Ledger.open(first_schema).verify() == report


def test_a_ledger_of_a_newer_version_is_left_alone(url: str) -> None:
    Ledger.open(url).close()
    engine = create_engine(make_url(url).set(drivername="sqlite" if "sqlite" in url else "postgresql+psycopg"))
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(LedgerError, match=r"schema 9999, newer than .*: upgrade rayprivacy"):
        Ledger.open(url)
