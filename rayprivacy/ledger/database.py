"""Transactions on a ledger, in whichever database keeps it.

A *write* holds the only write lock of the ledger from its first statement on: the process inside has read the ledger
and will write the next row, and no other can do so in between. That is what makes `reserve` linearizable. A *read* sees
one consistent snapshot. `create` is a write that may make the tables.
Connections are kept; a forked child drops its parent's without closing them.
"""

import fcntl
import os
import sqlite3
import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, insert, inspect, make_url, select
from sqlalchemy.exc import ArgumentError, DBAPIError

from rayprivacy.core.errors import LedgerError, LedgerPlaceError
from rayprivacy.core.files import at_home
from rayprivacy.ledger.book import VERSION, metadata, versions

WAIT_SECONDS = 60
_SESSION = {
    "synchronous_commit": "on",
    "lock_timeout": f"{WAIT_SECONDS}s",
    "idle_in_transaction_session_timeout": f"{WAIT_SECONDS}s",
}
_CREATION_LOCK = 7246913  # any number, the same for every version of this code
_BEGIN = {
    "read": "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    "write": "BEGIN; LOCK TABLE entries IN SHARE ROW EXCLUSIVE MODE",
    "create": f"BEGIN; SELECT pg_advisory_xact_lock({_CREATION_LOCK})",
}
BUSY_SECONDS = 60.0
_PLACE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR)
_open: "weakref.WeakSet[Database]" = weakref.WeakSet()
_abandoned: list[Any] = []  # pools of a parent process: closing them here could disturb its locks


class Database:
    """The ledger at a SQLAlchemy URL; its tables are created when it has none, and those of other versions refused."""

    def __init__(self, url: str) -> None:
        parsed = parse_url(url)
        self._backend = (_Postgres if parsed.get_backend_name() == "postgresql" else _Sqlite)(parsed)
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
            found = getattr(error, "orig", error)
            reason = next(iter(str(found).splitlines()), type(error).__name__)
            raise _refusing(found)(f"the ledger {self.name} refuses: {reason}; is it a ledger, and free?") from error

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


def ledger_file(url: str) -> Path | None:
    """The file in which a ledger is, or would be; None for a database server."""
    parsed = parse_url(url)
    return Path(str(parsed.database)) if parsed.get_backend_name() == "sqlite" else None


def parse_url(url: str) -> URL:
    """The URL in its parts, with `~` in the path of a file written out; one that is none is refused and not shown."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise LedgerPlaceError("privacy.ledger is no URL: give one such as sqlite:///ledger.db.") from None
    home = parsed.get_backend_name() == "sqlite" and (parsed.database or "").startswith("~")
    return parsed.set(database=str(at_home(str(parsed.database)))) if home else parsed


class _Postgres:
    """A ledger in a PostgreSQL database of its own, through psycopg: the ledger of a team, for many hosts.

    A write first locks the table of entries against other writers; the lock queue is first come, first served. Each
    statement after it sees all that was committed before. A read is one REPEATABLE READ snapshot. The session insists
    on synchronous commit, so that a charge that was acknowledged is on the server's disk.
    """

    def __init__(self, url: URL) -> None:
        self._url = url.set(drivername="postgresql+psycopg")
        self.name = f"postgresql://{url.host or url.query.get('host', '')}/{url.database}"

    def engine(self) -> Engine:
        options = " ".join(f"-c {name}={value}" for name, value in _SESSION.items())
        # The driver neither begins nor rolls back on its own: each message to the server counts while others wait.
        arguments = {"options": options, "autocommit": True}
        try:
            return create_engine(self._url, connect_args=arguments, max_overflow=-1, pool_reset_on_return=None)
        except ModuleNotFoundError:
            raise LedgerError(f"the ledger {self.name} needs psycopg: install rayprivacy[postgres].") from None

    @contextmanager
    def turn(self, mode: str) -> Iterator[None]:
        """Nothing to do: the server keeps the queue."""
        yield

    def begin(self, connection: Connection, mode: str) -> None:
        connection.connection.cursor().execute(_BEGIN[mode])

    def is_damaged(self, connection: Connection) -> bool:
        """Never: the server checks its pages when it reads them."""
        return False


class _Sqlite:
    """A ledger file, created with mode 0600: the embedded ledger, for several processes of one host.

    Every write begins with BEGIN IMMEDIATE. `synchronous=FULL` makes a committed charge survive a power cut; WAL lets
    readers go on meanwhile. Writers queue at a lock file beside the ledger: SQLite itself lets waiting writers sleep
    and retry, which is correct but lets some wait a hundred times longer than others. The lock file decides nothing.
    """

    def __init__(self, url: URL) -> None:
        if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:") or url.query:
            shown = url.render_as_string(hide_password=True)
            raise LedgerPlaceError(
                f"privacy.ledger is {shown}: give a SQLite file, e.g. sqlite:///ledger.db, or postgresql://host/database."
            )
        self._url = url
        self._path = Path(str(url.database))
        self.name = str(self._path)
        _prepare_file(self._path)
        _use_wal(self._path)
        self._file = _identity(self._path)

    def engine(self) -> Engine:
        engine = create_engine(self._url, connect_args={"timeout": BUSY_SECONDS}, max_overflow=-1)

        @event.listens_for(engine, "connect")
        def _connect(connection: Any, _record: Any) -> None:
            connection.isolation_level = None  # the driver opens no transactions of its own
            connection.execute("PRAGMA synchronous=FULL")

        return engine

    @contextmanager
    def turn(self, mode: str) -> Iterator[None]:
        """Wait in the queue of writers; readers do not wait. A file that was replaced meanwhile is refused."""
        if _identity(self._path) != self._file:
            raise LedgerError(f"the ledger {self.name} was replaced while it was in use: open it again, and verify it.")
        if mode == "read":
            yield
            return
        handle = os.open(f"{self._path}-queue", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def begin(self, connection: Connection, mode: str) -> None:
        connection.connection.cursor().execute("BEGIN" if mode == "read" else "BEGIN IMMEDIATE")

    def is_damaged(self, connection: Connection) -> bool:
        """Whether rows differ from their copies in an index, or pages make no sense."""
        return connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar() != "ok"


def _prepare_file(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            path.chmod(0o600)  # by name: closing a handle of a live SQLite file would drop this process's locks on it
    except OSError as error:
        reason = os.strerror(error.errno or 0)
    else:
        return
    raise LedgerPlaceError(f"the ledger file {path} cannot be made or owned ({reason}): give a folder of your own.")


def _refusing(error: object) -> type[LedgerError]:
    """The kind of error for what a database says: of its place, such as a full disk, or of itself."""
    return LedgerPlaceError if getattr(error, "sqlite_errorcode", 0) & 0xFF in _PLACE else LedgerError


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _use_wal(path: Path) -> None:
    """Switch the file to WAL, for good; where another process does too, SQLite answers "busy" at once, so we wait."""
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            with closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
                return
        except (sqlite3.DatabaseError, UnicodeError) as error:  # a damaged file may be quoted in no encoding
            busy = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > until:
                raise _refusing(error)(f"the ledger {path} refuses: {error}; is it a ledger, and free?") from error
        time.sleep(0.01)


def _in_child() -> None:
    for database in list(_open):
        database.forget()


os.register_at_fork(after_in_child=_in_child)
