"""The auditor accepts honest books of every kind, and finds whatever is changed in them."""

import ast
import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from handmade import (
    Handmade,
    chain,
    copy,
    entry_hash,
    every_kind,
    gaussian,
    gdp_cost,
    refuse,
    refuse_next,
    replay,
    stored,
)

from rayprivacy.core.errors import LedgerError
from rayprivacy.core.keys import Key
from rayprivacy.ledger import book as schema
from rayprivacy.ledger.audit.replay import VerifyReport
from rayprivacy.ledger.audit.rows import Rows, read_rows

KEY = Key.for_tests()
BOOK = every_kind(KEY).rows
CELLS = [
    (table, number, column)
    for table in ("accounts", "entries", "outputs")
    for number, row in enumerate(getattr(BOOK, table))
    for column in row
    if (table, column) != ("outputs", "size")  # counted from the bytes in a database, covered by a digest in an export
]


def flipped(value: Any) -> Any:
    if isinstance(value, int):
        return value ^ 1
    if isinstance(value, float):
        return struct.unpack("<d", struct.pack("<q", struct.unpack("<q", struct.pack("<d", value))[0] ^ 1))[0]
    middle = len(value) // 2
    return value[:middle] + chr(ord(value[middle]) ^ 1) + value[middle + 1 :] if value else "\x01"


def test_a_book_of_every_kind_replays() -> None:
    counts = VerifyReport(8, len(BOOK.entries), 11, len(BOOK.outputs), BOOK.entries[-1]["hash"], "checked")
    assert replay(BOOK, KEY) == counts
    assert replay(BOOK).macs == "unchecked"
    assert replay(every_kind().rows, KEY).macs == "none"
    assert {row["kind"] for row in BOOK.entries} == {
        *("create", "meaning", "plan", "reserve", "start", "renew", "takeover", "commit", "cancel", "exposure")
    }


def test_an_empty_book_replays() -> None:
    assert replay(Rows([], [], []), expected_head="0" * 64) == VerifyReport(0, 0, 0, 0, "0" * 64)


@pytest.mark.parametrize("table", ["accounts", "entries", "outputs"])
def test_every_flipped_bit_is_found(table: str) -> None:
    for of, number, column in CELLS:
        if of == table:
            rows = copy(BOOK)
            row = getattr(rows, table)[number]
            row[column] = flipped(row[column])
            refuse(rows, key=KEY)
            if column != "mac":  # a mac says nothing to those without the key
                refuse(rows)


@pytest.mark.parametrize("table", ["accounts", "entries", "outputs"])
def test_every_removed_repeated_or_swapped_row_is_found(table: str) -> None:
    count = len(getattr(BOOK, table))
    for number in range(count):
        removed, repeated, swapped = copy(BOOK), copy(BOOK), copy(BOOK)
        del getattr(removed, table)[number]
        refuse(removed, key=KEY, expected_head=BOOK.entries[-1]["hash"])
        getattr(repeated, table).insert(number, dict(getattr(repeated, table)[number]))
        refuse(repeated)
        if table == "entries":
            rows = swapped.entries
            rows[number - 1], rows[number] = rows[number], rows[number - 1]
            refuse(swapped)


def test_a_tail_that_was_cut_needs_the_head_that_was_seen() -> None:
    book = every_kind(KEY)
    older, head = book.rows, book.rows.entries[-1]["hash"]
    book.reserve("chat", "run-9", gaussian(40.0), gdp_cost(40.0))
    newer = book.rows
    assert replay(newer, KEY, head).entries == len(older.entries) + 1
    assert replay(older, KEY).entries == len(older.entries)  # neither chain nor macs can know
    refuse(older, "older copy was put back or its tail was cut", expected_head=newer.entries[-1]["hash"])


def test_every_cut_is_found_when_a_head_is_expected() -> None:
    for length in range(len(BOOK.entries)):
        refuse(Rows(BOOK.accounts, BOOK.entries[:length], BOOK.outputs), expected_head=BOOK.entries[-1]["hash"])


def test_macs() -> None:
    other = copy(BOOK)
    refuse(other, "another one", key=Key(b"k" * 32))
    other.entries[5]["mac"] = ""
    refuse(other, "entry 6 .* no mac")
    forged = Rows(BOOK.accounts, chain(BOOK.entries), BOOK.outputs)  # written anew, without the key
    assert replay(forged, KEY).macs == "none"
    refuse(Rows(BOOK.accounts, chain(BOOK.entries, Key(b"k" * 32)), BOOK.outputs), "entry 1 .* mac", key=KEY)


def test_a_book_may_be_keyed_later() -> None:
    rows = copy(BOOK)
    for row in rows.entries[:7]:
        row["mac"] = ""
    assert replay(rows, KEY).macs == "checked from entry 8 on"
    assert replay(rows).macs == "unchecked from entry 8 on"


# Whoever rewrites the chain with consistent hashes must still follow the rules.


def test_no_column_can_be_changed_in_a_chain_written_anew() -> None:
    honest = every_kind()
    for number, row in enumerate(honest.entries):
        for column in ("account", "kind", "release_id", "input_digest", "charge", "events", "cost", "balance", "rung"):
            entries = [dict(entry) for entry in honest.entries]
            entries[number][column] = row[column] + 1 if column == "rung" else row[column] + "x"
            refuse(Rows(honest.accounts, chain(entries), honest.outputs))


@pytest.mark.parametrize("state", ["reserved", "started", "committed"])
def test_a_forged_balance_is_found(state: str) -> None:
    honest = every_kind()
    for number, row in enumerate(honest.entries):
        entries = [dict(entry) for entry in honest.entries]
        balance = json.loads(row["balance"])
        balance[state] = [part + 1 for part in balance[state]] or [0]
        entries[number]["balance"] = json.dumps(balance)
        refuse(Rows(honest.accounts, chain(entries), honest.outputs), f"entry {number + 1} .* balance")


def test_a_balance_must_not_disappear() -> None:
    book = Handmade().open("chat")
    book.reserve("chat", "run", gaussian(5.0), gdp_cost(5.0))
    for missing in ("balance", "cost"):
        book.entries[-1] |= {missing: ""}
        refuse_next(book, f"entry 2 .* no valid JSON in {missing}")


def test_the_auditor_uses_no_code_of_the_store() -> None:
    package = Path(schema.__file__).parent
    allowed = {"rayprivacy.core", "rayprivacy.ledger.audit", "rayprivacy.ledger.book"}
    for path in (package / "export.py", *(package / "audit").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert not str(name).startswith("rayprivacy") or any(str(name).startswith(a) for a in allowed), path


# A real database, and time.


def test_a_database_is_verified_from_its_rows(tmp_path: Path) -> None:
    engine = stored(every_kind(KEY), f"sqlite:///{tmp_path}/ledger.db")
    with engine.connect() as connection:
        rows = read_rows(connection)
        assert replay(rows, KEY) == replay(BOOK, KEY)
        with pytest.raises(LedgerError, match="tail was cut"):
            replay(rows, KEY, "f" * 64)
    engine.dispose()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE outputs SET blob = x'00'",
        "UPDATE outputs SET blob = 'text'",
        "UPDATE outputs SET blob = NULL, digest = 7",
        "UPDATE entries SET detail = x'ff'",
        "UPDATE entries SET rung = 'one'",
        "UPDATE entries SET rung = 9223372036854775807",
        "UPDATE entries SET events = CAST(x'ff' AS TEXT)",
        "UPDATE accounts SET epsilon = 'three'",
        "UPDATE accounts SET parameters = x'7b7d'",
        "ALTER TABLE entries RENAME COLUMN mac TO mic",
        "DROP TABLE outputs",
    ],
)
def test_a_damaged_database_ends_in_one_sentence(tmp_path: Path, statement: str) -> None:
    engine = stored(every_kind(KEY), f"sqlite:///{tmp_path}/ledger.db")
    with engine.begin() as connection:
        for (name,) in connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'trigger'").all():
            connection.exec_driver_sql(f"DROP TRIGGER {name}")
        connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
        connection.exec_driver_sql("PRAGMA writable_schema = ON")
        connection.exec_driver_sql("UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '') WHERE type = 'table'")
    engine.dispose()
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
    with engine.connect() as connection, pytest.raises(LedgerError):
        replay(read_rows(connection))
    engine.dispose()


def test_thirty_thousand_rows_take_seconds() -> None:
    book = Handmade(KEY).open("a", epsilon=50.0)
    cost = gdp_cost(50.0)
    for number in range(10_000):
        book.release("a", f"run-{number}", gaussian(50.0), cost)
    rows = book.rows
    before = time.process_time()
    assert replay(rows, KEY).entries == 30_001
    assert time.process_time() - before < 15  # about three on one core


def test_entries_are_numbered_without_a_gap() -> None:
    head, entries = "0" * 64, []
    for entry in every_kind().rows.entries:
        row = entry | {"seq": entry["seq"] + 1, "prev_hash": head}
        head = row["hash"] = entry_hash(row)
        entries.append(row)
    refuse(Rows(BOOK.accounts, entries, BOOK.outputs), "entry 1 .* does not follow")
