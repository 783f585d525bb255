"""The rows of a book as plain dictionaries, so that a database and an export are read by the same auditor.

An output appears by its digest and size alone: its bytes are hashed when they are read from the database, and an export
never holds them. The type of every cell is checked, because SQLite keeps whatever type was written into a column.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Float, Integer, Table, select
from sqlalchemy.exc import SQLAlchemyError

from rayprivacy.core.errors import LedgerError
from rayprivacy.ledger.audit.strict import fail
from rayprivacy.ledger.schema import accounts, entries, outputs

Row = dict[str, Any]


@dataclass(frozen=True)
class Rows:
    """A whole book.

    Attributes:
        accounts: the columns of the table of that name, one dictionary a row.
        entries: likewise, in the order of `seq`.
        outputs: charge, release_id, input_digest, digest, and size in bytes instead of the bytes.
    """

    accounts: list[Row]
    entries: list[Row]
    outputs: list[Row]


def _types(table: Table) -> dict[str, type | tuple[type, ...]]:
    kinds: dict[str, type | tuple[type, ...]] = {}
    for column in table.columns:
        integer, real = isinstance(column.type, Integer), isinstance(column.type, Float)
        kinds[column.name] = int if integer else (float, int) if real else str
    return kinds


ACCOUNT_COLUMNS = _types(accounts)
ENTRY_COLUMNS = _types(entries)
OUTPUT_COLUMNS = {name: kind for name, kind in _types(outputs).items() if name != "blob"} | {"size": int}


def read_rows(connection: Connection) -> Rows:
    """Read a book from a database, inside the caller's transaction, and compare outputs with their digests."""
    try:
        return Rows(
            [dict(row) for row in connection.execute(select(accounts).order_by(accounts.c.name)).mappings()],
            [dict(row) for row in connection.execute(select(entries).order_by(entries.c.seq)).mappings()],
            list(_outputs(connection)),
        )
    except (SQLAlchemyError, ValueError, TypeError, ArithmeticError):
        raise LedgerError("a table of the ledger cannot be read: restore the newest copy of the ledger.") from None


def check_types(rows: Rows) -> None:
    """Check the columns of every row and the type of every cell."""
    for row in rows.accounts:
        _check(row, ACCOUNT_COLUMNS, "a row of the accounts")
    for number, row in enumerate(rows.entries, start=1):
        _check(row, ENTRY_COLUMNS, f"entry {number}")
    for row in rows.outputs:
        _check(row, OUTPUT_COLUMNS, "a row of the outputs")


def _outputs(connection: Connection) -> Iterator[Row]:
    for found in connection.execute(select(outputs).order_by(outputs.c.charge)).mappings():
        row = dict(found)
        blob = row.pop("blob")
        if not isinstance(blob, bytes) or hashlib.sha256(blob).hexdigest() != row["digest"]:
            fail(f"the output of release {row['release_id']!r}", "is not what was committed")
        yield row | {"size": len(blob)}


def _check(row: Row, columns: dict[str, type | tuple[type, ...]], where: str) -> None:
    if not isinstance(row, dict) or row.keys() != columns.keys():
        fail(where, "has other columns than its table")
    for name, kind in columns.items():
        if not isinstance(row[name], kind) or isinstance(row[name], bool):
            fail(where, f"holds a {type(row[name]).__name__} in {name}")
