"""One SQLite file with transactions that several processes may race for.

Every write transaction begins with BEGIN IMMEDIATE: whoever holds it has read the book and will write the next row,
and nobody else can do so in between, which is what makes `reserve` linearizable. `synchronous=FULL` makes a committed
charge survive a power cut; WAL lets readers go on meanwhile. No connection outlives its transaction, so that a ledger
may be used from threads and forked processes alike.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from rayprivacy.core.errors import LedgerError
from rayprivacy.ledger.schema import REVISION

BUSY_SECONDS = 60.0
RETRY_SECONDS = 0.01
_MIGRATIONS = Path(__file__).parent / "migrations"


class Database:
    """Transactions on the ledger file named by a SQLAlchemy URL, created and migrated when opened.

    Raises:
        LedgerError: the URL names no SQLite file, or the file is not a ledger this version can read.
    """

    def __init__(self, url: str) -> None:
        self.path = _path(url)
        _prepare_file(self.path)
        _use_wal(self.path)
        self._engine = _engine(url)
        with self.write() as connection:
            _migrate(connection, self.path)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent snapshot."""
        with self._begin(self._engine) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """The only writer; commits at the end, rolls back on an exception."""
        with self._begin(self._engine.execution_options(rayprivacy_write=True)) as connection:
            yield connection

    @contextmanager
    def _begin(self, engine: Engine) -> Iterator[Connection]:
        try:
            with engine.begin() as connection:
                yield connection
        except DBAPIError as error:
            raise LedgerError(f"the ledger {self.path} refuses: {error.orig}; is it a ledger, and free?") from error

    def close(self) -> None:
        """Forget the engine."""
        self._engine.dispose()


def _path(url: str) -> Path:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise LedgerError(f"privacy.ledger is {url!r}: give a URL such as sqlite:///ledger.db.") from None
    if parsed.get_backend_name() != "sqlite" or parsed.database in (None, "", ":memory:") or parsed.query:
        shown = parsed.render_as_string(hide_password=True)
        raise LedgerError(f"privacy.ledger is {shown}: give a SQLite file, e.g. sqlite:///ledger.db.")
    return Path(str(parsed.database))


def _prepare_file(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        path.chmod(0o600)  # by name: closing a handle of a live SQLite file would drop this process's locks on it


def _use_wal(path: Path) -> None:
    """Switch the file to WAL, which it then keeps.

    While another process switches it too, SQLite answers "busy" at once here, whatever the timeout: so we wait.
    """
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            with closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
                return
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise LedgerError(f"the ledger {path} refuses: {error}; is it a ledger, and free?") from error
        time.sleep(RETRY_SECONDS)


def _engine(url: str) -> Engine:
    engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": BUSY_SECONDS})

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver opens no transactions of its own: `_begin` below does
        connection.execute("PRAGMA synchronous=FULL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("rayprivacy_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _migrate(connection: Connection, path: Path) -> None:
    current = MigrationContext.configure(connection).get_current_revision()
    if current == REVISION:
        return
    if current is not None and current > REVISION:
        raise LedgerError(f"the ledger {path} has schema {current}, newer than {REVISION}: upgrade rayprivacy.")
    config = AlembicConfig()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, REVISION)
