"""A fresh ledger with one account, epsilon 3 at delta 1e-6: on SQLite and on a real PostgreSQL server."""

from pathlib import Path

import pytest
from backdoor import Backdoor, empty_database
from postgres import postgres_server
from usual import TERMS

from rayprivacy.ledger.store import Ledger


@pytest.fixture(scope="session")
def postgres():
    with postgres_server() as url:
        yield url
        empty_database(url)  # or the server takes long to stop


@pytest.fixture
def postgres_url(postgres):
    empty_database(postgres)
    return postgres


@pytest.fixture
def sqlite_url(tmp_path):
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request):
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))


@pytest.fixture(scope="session")
def empty_book(tmp_path_factory):
    path = tmp_path_factory.mktemp("empty") / "ledger.db"
    Ledger.open(f"sqlite:///{path}").close()
    return path.read_bytes()


@pytest.fixture
def ledger(url, empty_book):
    if url.startswith("sqlite"):
        Path(url.removeprefix("sqlite:///")).write_bytes(empty_book)  # creating tables takes longer than many tests
    ledger = Ledger.open(url)
    ledger.create_account("chat", *TERMS)
    yield ledger
    ledger.close()


@pytest.fixture
def backdoor(url, ledger):
    connection = Backdoor(url)
    yield connection
    connection.close()
