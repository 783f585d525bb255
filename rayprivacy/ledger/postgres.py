"""PostgreSQL: the ledger of a team, for many hosts.

A write first locks the table of entries against other writers; the lock queue is first come, first served. Each
statement after it sees all that was committed before. A read is one REPEATABLE READ snapshot. The session insists on
synchronous commit, so that a charge that was acknowledged is on the server's disk.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import URL, Connection, Engine, create_engine

from rayprivacy.core.errors import LedgerError

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


class PostgresBackend:
    """A ledger in a PostgreSQL database of its own, through psycopg."""

    def __init__(self, url: URL) -> None:
        self._url = url.set(drivername="postgresql+psycopg")
        self.name = f"postgresql://{url.host or url.query.get('host', '')}/{url.database}"

    def engine(self) -> Engine:
        """An engine with one connection for each thread that needs one at the same time."""
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
        """Fix the snapshot, or take the lock that the mode needs."""
        connection.connection.cursor().execute(_BEGIN[mode])

    def is_damaged(self, connection: Connection) -> bool:
        """Never: the server checks its pages when it reads them."""
        return False
