"""One SQLite file: the embedded ledger, for several processes of one host.

Every write begins with BEGIN IMMEDIATE. `synchronous=FULL` makes a committed charge survive a power cut; WAL lets
readers go on meanwhile. Writers queue at a lock file beside the ledger: SQLite itself lets waiting writers sleep and
retry, which is correct but lets some wait a hundred times longer than others. The lock file decides nothing.
"""

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event

from rayprivacy.core.errors import LedgerError

BUSY_SECONDS = 60.0
RETRY_SECONDS = 0.01


class SqliteBackend:
    """A ledger file, created with mode 0600."""

    def __init__(self, url: URL) -> None:
        if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:") or url.query:
            shown = url.render_as_string(hide_password=True)
            raise LedgerError(
                f"privacy.ledger is {shown}: give a SQLite file, e.g. sqlite:///ledger.db, or postgresql://host/database."
            )
        self._url = url
        self._path = Path(str(url.database))
        self.name = str(self._path)
        _prepare_file(self._path)
        _use_wal(self._path)
        self._file = _identity(self._path)

    def engine(self) -> Engine:
        """An engine with one connection for each thread that needs one at the same time."""
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
        """Begin a snapshot, or take the write lock at once."""
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
    raise LedgerError(f"the ledger file {path} cannot be made or owned ({reason}): give a folder of your own.")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


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
        except (sqlite3.DatabaseError, UnicodeError) as error:  # a damaged file may be quoted in no encoding
            busy = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > until:
                raise LedgerError(f"the ledger {path} refuses: {error}; is it a ledger, and free?") from error
        time.sleep(RETRY_SECONDS)
