"""Write into a ledger behind its back, as somebody with the rights of the database's owner could."""

import sqlite3
from typing import Any

import psycopg

TABLES = ("accounts", "entries", "outputs")
OTHERS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


class Backdoor:
    """A connection of its own to the database of a ledger.

    Attributes:
        refusals: what the driver raises when a trigger refuses a statement.
    """

    refusals = (sqlite3.IntegrityError, psycopg.errors.RaiseException)

    def __init__(self, url: str) -> None:
        self.is_sqlite = url.startswith("sqlite:///")
        self._connection: Any = (
            sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
            if self.is_sqlite
            else psycopg.connect(url, autocommit=True)
        )

    def plain(self, statement: str, *values: Any) -> list[Any]:
        """Execute a statement; `?` marks a value, and x'..' is a binary literal."""
        if not self.is_sqlite:
            statement = statement.replace("?", "%s").replace(" x'", r" '\x")
        cursor = self._connection.execute(statement, values or None) if values else self._connection.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []

    def execute(self, statement: str, *values: Any) -> list[Any]:
        """Execute a statement with the triggers out of the way."""
        self.without_triggers()
        return self.plain(statement, *values)

    def without_triggers(self) -> None:
        if self.is_sqlite:
            for (name,) in self.plain("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
                self.plain(f"DROP TRIGGER {name}")
            return
        for table in TABLES:
            self.plain(f"ALTER TABLE {table} DISABLE TRIGGER USER")

    def close(self) -> None:
        self._connection.close()


def empty_database(url: str) -> None:
    """Drop all tables, and the connections of earlier tests: making a new database takes ten times as long."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"SELECT pg_terminate_backend(pid) FROM ({OTHERS}) AS others")
        connection.execute("SET client_min_messages = warning; DROP SCHEMA public CASCADE; CREATE SCHEMA public")
