"""The rows of a book, from a database or an export, read as what may have been forged.

Rows are plain dictionaries. An output appears by its digest and size alone. The type of every cell is checked, because
SQLite keeps whatever type was written into a column.

Python's JSON reader takes NaN, infinities, duplicate keys and integers of any length, and `True == 1 == 1.0`; each is a
way to make two readers see two different books. Everything here either returns a value of the stated type and range or
raises LedgerError with the place it was found at; no other exception leaves.

The hash chain and the macs say that nothing was changed, removed, moved or, with the key, written anew.
hash = SHA-256 of the canonical JSON of every column but `hash` and `mac`; `rung`, `cost` and `balance` are left out
when they are 0 or empty. mac = PRF(key, "ledger-entry", hash): without the key, a rewritten chain can have new hashes
and no new macs. A book may begin without macs and be keyed later, never the other way round. A book that was written
anew without the key, and then continued with it, looks like that too: so the report names the first entry with a mac.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from sqlalchemy import Connection, Float, Integer, Table, select
from sqlalchemy.exc import SQLAlchemyError

from rayprivacy.core.errors import LedgerError
from rayprivacy.core.keys import Key
from rayprivacy.ledger.book import accounts, entries, outputs

Row = dict[str, Any]  # of a table, or a JSON object
_Types = dict[str, type | tuple[type, ...]]
MAX_COUNT = 2**53
MAX_AMOUNT = 2**1000  # beyond any real cost, and still convertible to a float
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def fail(where: str, what: str) -> NoReturn:
    """Refuse the book, naming the row."""
    raise LedgerError(f"{where} of the ledger {what}: the file was altered, so restore the newest copy of it.")


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces."""
    return _ENCODER.encode(value)


def parse(text: str, where: str, column: str) -> Any:
    """Read JSON without NaN, infinities and duplicate keys."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        fail(where, f"holds no valid JSON in {column}")


def read_mapping(row: Row, column: str, keys: set[str], where: str, optional: frozenset[str] = frozenset()) -> Row:
    """The JSON object in a column, with exactly these keys, as `mapping` requires."""
    return mapping(parse(row[column], where, column), keys, where, column, optional)


def mapping(value: Any, keys: set[str], where: str, column: str, optional: frozenset[str] = frozenset()) -> Row:
    """A JSON object with exactly these keys, the optional ones present or not."""
    if not isinstance(value, dict) or not keys <= value.keys() <= keys | optional:
        fail(where, f"holds another JSON object in {column} than its kind has")
    return value


def items(value: Any, where: str, column: str) -> list[Any]:
    """A JSON list."""
    if not isinstance(value, list):
        fail(where, f"holds no list in {column}")
    return value


def text(value: Any, where: str, column: str) -> str:
    """A string."""
    if not isinstance(value, str):
        fail(where, f"holds no text in {column}")
    return value


def is_digest(value: str) -> bool:
    """Whether this is a SHA-256 in hex."""
    return _DIGEST.fullmatch(value) is not None


def digest(value: Any, where: str, column: str) -> str:
    """A SHA-256 in hex."""
    if not is_digest(text(value, where, column)):
        fail(where, f"holds no digest in {column}")
    return str(value)


def whole(value: Any, least: int, most: int, where: str, column: str) -> int:
    """An integer within bounds; booleans and 1.0 are none."""
    if type(value) is not int or not least <= value <= most:
        fail(where, f"holds no whole number from {least} on in {column}")
    return value


def number(value: Any, above: float, most: float, where: str, column: str) -> float:
    """A finite number above one bound and not above the other; NaN is not."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not above < value <= most:
        fail(where, f"holds a number out of range in {column}")
    return float(value)


def amounts(value: Any, where: str, column: str) -> list[int]:
    """A list of whole numbers that are not negative."""
    return [whole(part, 0, MAX_AMOUNT, where, column) for part in items(value, where, column)]


def _unique(pairs: list[tuple[str, Any]]) -> Row:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate key")
    return found


def _constant(name: str) -> NoReturn:
    raise ValueError(name)


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_constant)


@dataclass(frozen=True)
class Rows:
    """A whole book; entries are in the order of `seq`, and an output holds its `size` in bytes instead of the bytes."""

    accounts: list[Row]
    entries: list[Row]
    outputs: list[Row]


def _types(table: Table) -> _Types:
    kinds: _Types = {}
    for column in table.columns:
        integer, real = isinstance(column.type, Integer), isinstance(column.type, Float)
        kinds[column.name] = int if integer else (float, int) if real else str
    return kinds


_ACCOUNT_COLUMNS = _types(accounts)
_ENTRY_COLUMNS = _types(entries)
_OUTPUT_COLUMNS = {name: kind for name, kind in _types(outputs).items() if name != "blob"} | {"size": int}


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
        _check(row, _ACCOUNT_COLUMNS, "a row of the accounts")
    for number, row in enumerate(rows.entries, start=1):
        _check(row, _ENTRY_COLUMNS, f"entry {number}")
    for row in rows.outputs:
        _check(row, _OUTPUT_COLUMNS, "a row of the outputs")


def _outputs(connection: Connection) -> Iterator[Row]:
    for found in connection.execute(select(outputs).order_by(outputs.c.charge)).mappings():
        row = dict(found)
        blob = row.pop("blob")
        if not isinstance(blob, bytes) or hashlib.sha256(blob).hexdigest() != row["digest"]:
            fail(f"the output of release {row['release_id']!r}", "is not what was committed")
        yield row | {"size": len(blob)}


def _check(row: Row, columns: _Types, where: str) -> None:
    if not isinstance(row, dict) or row.keys() != columns.keys():
        fail(where, "has other columns than its table")
    for name, kind in columns.items():
        if not isinstance(row[name], kind) or isinstance(row[name], bool):
            fail(where, f"holds a {type(row[name]).__name__} in {name}")


GENESIS = "0" * 64
_LEFT_OUT = {"rung": 0, "cost": "", "balance": ""}


def check_links(entries: list[Row], key: Key | None, expected_head: str | None) -> tuple[str, str]:
    """Check every link and mac; returns the head, and `VerifyReport.macs`."""
    head, keyed = GENESIS, 0  # the first entry with a mac
    heads = {GENESIS}
    for seq, row in enumerate(entries, start=1):
        where = f"entry {seq}"
        if row["seq"] != seq or row["prev_hash"] != head:
            fail(where, "does not follow the one before it")
        if not 0 <= row["rung"] <= 2**31 - 1 or _hash(row) != row["hash"]:
            fail(where, "does not match its hash")
        head = str(row["hash"])
        if _check_mac(row["mac"], head, key, keyed > 0, where):
            keyed = keyed or seq
        heads.add(head)
    if expected_head is not None and expected_head not in heads:
        raise LedgerError(
            f"the ledger lacks the entry {expected_head[:12]} seen earlier: an older copy was put back or its tail was"
            " cut, so restore the newest one."
        )
    since = f" from entry {keyed} on" if keyed > 1 else ""
    return head, ("unchecked" if key is None else "checked") + since if keyed else "none"


def _hash(row: Row) -> str:
    content = {k: v for k, v in row.items() if k not in ("hash", "mac") and not (k in _LEFT_OUT and v == _LEFT_OUT[k])}
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def _check_mac(mac: str, digest: str, key: Key | None, keyed: bool, where: str) -> bool:
    if mac == "":
        if keyed:
            fail(where, "has no mac although the one before it has")
        return False
    if not is_digest(mac) or (key is not None and mac != key.digest("ledger-entry", digest)):
        fail(where, "does not match its mac (the key is another one, or the entry was written without it)")
    return True
