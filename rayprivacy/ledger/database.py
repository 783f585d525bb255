"""Transactions on a ledger, in whichever database keeps it.

A *write* holds the only write lock of the ledger from its first statement on: the process inside has read the ledger
and will write the next row, and no other can do so in between. That is what makes `reserve` linearizable. A *read* sees
one consistent snapshot. What differs between SQLite and PostgreSQL is in `Backend`; the queries are the same.

Connections are kept between transactions. A forked child drops its parent's without closing them, and opens its own.
"""

import os
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from rayprivacy.core.errors import LedgerError
from rayprivacy.ledger.postgres import PostgresBackend
from rayprivacy.ledger.schema import REVISION
from rayprivacy.ledger.sqlite import SqliteBackend

_MIGRATIONS = Path(__file__).parent / "migrations"
_open: "weakref.WeakSet[Database]" = weakref.WeakSet()
_abandoned: list[Any] = []  # pools of a parent process: closing them here could disturb its locks


class Backend(Protocol):
    """What a database has to bring along; a mode is "read", "write" or "migrate".

    Attributes:
        name: what messages call the ledger; holds no password.
    """

    name: str

    def engine(self) -> Engine:
        """An engine whose driver commits nothing on its own."""

    def turn(self, mode: str) -> AbstractContextManager[None]:
        """What must hold around a transaction."""

    def begin(self, connection: Connection, mode: str) -> None:
        """The first statement: fix the snapshot, or take the lock."""

    def damage(self, connection: Connection) -> str | None:
        """What the database finds wrong with its own storage, where it can tell."""


class Database:
    """The ledger at a SQLAlchemy URL, created and migrated when opened.

    Raises:
        LedgerError: the URL names no ledger, or one that this version cannot read.
    """

    def __init__(self, url: str) -> None:
        self._backend = _backend(url)
        self.name = self._backend.name
        self.url = url
        self._engine = self._backend.engine()
        self._modes = {mode: self._engine.execution_options(rayprivacy=mode) for mode in ("read", "write", "migrate")}
        self._errors = (DBAPIError, self._engine.dialect.loaded_dbapi.Error, UnicodeError)
        event.listen(self._engine, "begin", self._on_begin)
        _open.add(self)
        self._migrate()

    def read(self) -> AbstractContextManager[Connection]:
        """A consistent snapshot."""
        return self._transaction("read")

    def write(self) -> AbstractContextManager[Connection]:
        """The only writer; commits at the end, rolls back on an exception."""
        return self._transaction("write")

    def check_storage(self, connection: Connection) -> None:
        """Let the database look at its own storage.

        Raises:
            LedgerError: it is damaged.
        """
        damage = self._backend.damage(connection)
        if damage:
            raise LedgerError(f"the storage of the ledger {self.name} is damaged: restore the newest copy of it.")

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def forget(self) -> None:
        """In a forked child: use none of the parent's connections."""
        _abandoned.append(self._engine.pool)
        self._engine.dispose(close=False)

    @contextmanager
    def _transaction(self, mode: str) -> Iterator[Connection]:
        try:
            # The connection comes first: others wait during a turn, so a turn is short.
            with self._modes[mode].connect() as connection, self._backend.turn(mode), self._begun(connection):
                yield connection
        except self._errors as error:
            reason = next(iter(str(getattr(error, "orig", error)).splitlines()), type(error).__name__)
            raise LedgerError(f"the ledger {self.name} refuses: {reason}; is it a ledger, and free?") from error

    @contextmanager
    def _begun(self, connection: Connection) -> Iterator[None]:
        try:
            with self._fresh(connection):
                yield
        except self._errors:
            connection.invalidate()  # it may be dead, or inside a transaction: never keep it
            raise

    def _fresh(self, connection: Connection) -> AbstractContextManager[Any]:
        try:
            return connection.begin()
        except self._errors as error:
            if not self._engine.dialect.is_disconnect(error, connection.connection, None):  # type: ignore[arg-type]
                raise
            connection.invalidate()  # the server was restarted since; nothing has been done yet
            return connection.begin()

    def _on_begin(self, connection: Connection) -> None:
        self._backend.begin(connection, connection.get_execution_options().get("rayprivacy", "read"))

    def _migrate(self) -> None:
        with self.read() as connection:
            if self._revision(connection) == REVISION:
                return
        with self._transaction("migrate") as connection:
            if self._revision(connection) != REVISION:
                config = AlembicConfig()
                config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
                config.attributes["connection"] = connection
                command.upgrade(config, REVISION)

    def _revision(self, connection: Connection) -> str | None:
        try:
            current = MigrationContext.configure(connection).get_current_revision()
        except CommandError:
            raise LedgerError(f"the ledger {self.name} names two schemas at once: restore the newest copy.") from None
        if current is not None and current > REVISION:
            raise LedgerError(
                f"the ledger {self.name} has schema {current}, newer than {REVISION}: upgrade rayprivacy."
            )
        return current


def _backend(url: str) -> Backend:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise LedgerError("privacy.ledger is no URL: give one such as sqlite:///ledger.db.") from None
    if parsed.get_backend_name() == "postgresql":
        return PostgresBackend(parsed)
    return SqliteBackend(parsed)


def _in_child() -> None:
    for database in list(_open):
        database.forget()


os.register_at_fork(after_in_child=_in_child)
