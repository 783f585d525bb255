"""Rows of the ledger's tables: prepared statements, one reader of rows, and one error for rows that make no sense.

A charge holds the ledger's write lock for as long as its few statements take, and every other writer waits. Running a
statement through SQLAlchemy costs several times what the database needs for it, so SQLAlchemy writes the SQL once and
the driver runs it.

Whatever is wrong with the content of a row, the reader gets one sentence that sends them to `verify`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from sqlalchemy import ClauseElement, Connection, Dialect, Table, bindparam, select

from rayprivacy.core.errors import EventError, LedgerError

_PARAMETERS = {"sqlite": "named", "postgresql": "pyformat"}


class Query:
    """One statement with named parameters."""

    def __init__(self, statement: ClauseElement) -> None:
        self._statement = statement
        self._compiled: dict[str, tuple[str, dict[str, Any]]] = {}

    def rows(self, connection: Connection, **values: Any) -> list[Any]:
        """Every row of the result, as tuples."""
        return list(self._execute(connection, values).fetchall())

    def first(self, connection: Connection, **values: Any) -> Any:
        """The first row, or None."""
        return next(iter(self.rows(connection, **values)), None)

    def run(self, connection: Connection, **values: Any) -> None:
        """Execute a statement without a result."""
        self._execute(connection, values)

    def _execute(self, connection: Connection, values: dict[str, Any]) -> Any:
        text, constants = self._text(connection.dialect)
        cursor = connection.connection.cursor()
        cursor.execute(text, constants | values)
        return cursor

    def _text(self, dialect: Dialect) -> tuple[str, dict[str, Any]]:
        if dialect.name not in self._compiled:
            named = type(dialect)(paramstyle=_PARAMETERS[dialect.name])  # type: ignore[call-arg]
            compiled = self._statement.compile(dialect=named)
            constants = {name: value for name, value in compiled.params.items() if value is not None}
            self._compiled[dialect.name] = str(compiled), constants
        return self._compiled[dialect.name]


def find(connection: Connection, table: Table, **values: Any) -> list[dict[str, Any]]:
    """The rows of a table whose columns have these values, or values from one to the other of a pair, in any order."""
    bound: dict[str, Any] = {}
    for name, value in values.items():
        bound |= {name: value[0], f"{name}_last": value[1]} if isinstance(value, tuple) else {name: value}
    names = table.columns.keys()
    return [dict(zip(names, row, strict=True)) for row in _by(table, tuple(bound)).rows(connection, **bound)]


@cache
def _by(table: Table, bound: tuple[str, ...]) -> Query:
    ranges = {name for name in bound if f"{name}_last" in bound}
    conditions = (
        table.c[name].between(bindparam(name), bindparam(f"{name}_last"))
        if name in ranges
        else table.c[name] == bindparam(name)
        for name in bound
        if name in table.c
    )
    return Query(select(table).where(*conditions))


@contextmanager
def decoding(what: str) -> Iterator[None]:
    """Around everything that takes the content of rows apart: LedgerError when it is not what this code writes."""
    try:
        yield
    except (ArithmeticError, AttributeError, EventError, LookupError, RecursionError, TypeError, ValueError):
        damage = LedgerError(f"{what} of the ledger cannot be read: it was altered, so run `rayprivacy ledger verify`.")
    else:
        return
    raise damage
