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
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, event, insert, inspect, make_url, select
from sqlalchemy.exc import ArgumentError, DBAPIError

from rayprivacy.core.errors import LedgerError
from rayprivacy.ledger.postgres import PostgresBackend
from rayprivacy.ledger.schema import VERSION, metadata, versions
from rayprivacy.ledger.sqlite import SqliteBackend

_open: "weakref.WeakSet[Database]" = weakref.WeakSet()
_abandoned: list[Any] = []  # pools of a parent process: closing them here could disturb its locks


class Backend(Protocol):
    """What a database has to bring along; a mode is "read", "write" or "create".

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

    def is_damaged(self, connection: Connection) -> bool:
        """Whether the database finds its own storage damaged, where it can tell."""


class Database:
    """The ledger at a SQLAlchemy URL; its tables are created when it has none, and those of other versions refused."""

    def __init__(self, url: str) -> None:
        self._backend = _backend(url)
        self.name = self._backend.name
        self.url = url
        self._engine = self._backend.engine()
        self._modes = {mode: self._engine.execution_options(rayprivacy=mode) for mode in ("read", "write", "create")}
        self._errors = (DBAPIError, self._engine.dialect.loaded_dbapi.Error, UnicodeError)
        event.listen(self._engine, "begin", self._on_begin)
        _open.add(self)
        self._create()

    def read(self) -> AbstractContextManager[Connection]:
        """A consistent snapshot."""
        return self._transaction("read")

    def write(self) -> AbstractContextManager[Connection]:
        """The only writer; commits at the end, rolls back on an exception."""
        return self._transaction("write")

    def check_storage(self, connection: Connection) -> None:
        """Let the database look for damage in its own storage."""
        if self._backend.is_damaged(connection):
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

    def _create(self) -> None:
        with self.read() as connection:
            if self._exists(connection):
                return
        with self._transaction("create") as connection:
            if not self._exists(connection):
                metadata.create_all(connection)
                connection.execute(insert(versions).values(version=VERSION))

    def _exists(self, connection: Connection) -> bool:
        """Whether the tables are there; LedgerError when they are those of another version."""
        tables = set(inspect(connection).get_table_names())
        if versions.name not in tables:
            if tables & metadata.tables.keys():
                raise LedgerError(
                    f"the ledger {self.name} was written by an earlier version of rayprivacy, which this one does not"
                    " read: finish with that version what was begun with it."
                )
            return False
        found = connection.execute(select(versions.c.version)).scalars().all()
        if found != [VERSION]:
            shown = " and ".join(map(str, found)) or "none"
            raise LedgerError(
                f"the ledger {self.name} has schema {shown}, and this version of rayprivacy reads {VERSION}: use the"
                " version that wrote it."
            )
        return True


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
