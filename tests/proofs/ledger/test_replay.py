"""The auditor accepts honest books of every kind, finds what is changed in them, and answers garbage in a sentence."""

import ast
import contextlib
import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from effort import EFFORT
from handmade import (
    Handmade,
    chain,
    copy,
    entry_hash,
    every_kind,
    gaussian,
    gdp_cost,
    refuse,
    replay,
    stored,
)
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.core.errors import LedgerError
from rayprivacy.core.keys import Key
from rayprivacy.ledger import book as schema
from rayprivacy.ledger.audit.replay import VerifyReport
from rayprivacy.ledger.audit.rows import Rows, read_rows

KEY = Key.for_tests()
BOOK = every_kind(KEY).rows
CELLS = [(t, n, c) for t in ("accounts", "entries", "outputs") for n, row in enumerate(getattr(BOOK, t)) for c in row]
UNCHAINED = ("outputs", "size")  # counted from the bytes in a database, covered by a digest in an export


def flipped(value):
    if isinstance(value, int):
        return value ^ 1
    if isinstance(value, float):
        return struct.unpack("<d", struct.pack("<q", struct.unpack("<q", struct.pack("<d", value))[0] ^ 1))[0]
    middle = len(value) // 2
    return value[:middle] + chr(ord(value[middle]) ^ 1) + value[middle + 1 :] if value else "\x01"


def test_a_book_of_every_kind_replays():
    counts = VerifyReport(8, len(BOOK.entries), 11, len(BOOK.outputs), BOOK.entries[-1]["hash"], "checked")
    assert replay(BOOK, KEY) == counts
    assert replay(BOOK).macs == "unchecked"
    assert replay(every_kind().rows, KEY).macs == "none"
    assert {row["kind"] for row in BOOK.entries} == {
        *("create", "meaning", "plan", "reserve", "start", "renew", "takeover", "commit", "cancel", "exposure")
    }
    assert replay(Rows([], [], []), expected_head="0" * 64) == VerifyReport(0, 0, 0, 0, "0" * 64)


@pytest.mark.parametrize("table", ["accounts", "entries", "outputs"])
def test_every_flipped_bit_is_found(table):
    for of, number, column in CELLS:
        if of == table and (of, column) != UNCHAINED:
            rows = copy(BOOK)
            row = getattr(rows, table)[number]
            row[column] = flipped(row[column])
            refuse(rows, key=KEY if column == "mac" or number == 0 else None)  # a mac says nothing without the key


@pytest.mark.parametrize("table", ["accounts", "entries", "outputs"])
def test_every_removed_repeated_or_swapped_row_is_found(table):
    for number, row in enumerate(getattr(BOOK, table)):
        removed, repeated, swapped = copy(BOOK), copy(BOOK), copy(BOOK)
        del getattr(removed, table)[number]
        refuse(removed, key=KEY, expected_head=BOOK.entries[-1]["hash"])
        getattr(repeated, table).insert(number, dict(row))
        refuse(repeated)
        if table == "entries":
            swapped.entries[number], swapped.entries[number - 1] = BOOK.entries[number - 1], row
            refuse(swapped)


def test_a_tail_that_was_cut_needs_the_head_that_was_seen():
    book = every_kind(KEY)
    older, head = book.rows, book.rows.entries[-1]["hash"]
    book.reserve("chat", "run-9", gaussian(40.0), gdp_cost(40.0))
    newer = book.rows
    assert replay(newer, KEY, head).entries == replay(older, KEY).entries + 1  # neither chain nor macs can know
    refuse(older, "older copy was put back or its tail was cut", expected_head=newer.entries[-1]["hash"])
    for length in range(len(BOOK.entries)):
        refuse(Rows(BOOK.accounts, BOOK.entries[:length], BOOK.outputs), expected_head=head)


def test_macs():
    other = copy(BOOK)
    refuse(other, "another one", key=Key(b"k" * 32))
    other.entries[5]["mac"] = ""
    refuse(other, "entry 6 .* no mac")
    forged = Rows(BOOK.accounts, chain(BOOK.entries), BOOK.outputs)  # written anew, without the key
    assert replay(forged, KEY).macs == "none"
    refuse(Rows(BOOK.accounts, chain(BOOK.entries, Key(b"k" * 32)), BOOK.outputs), "entry 1 .* mac", key=KEY)
    later = copy(BOOK)
    for row in later.entries[:7]:
        row["mac"] = ""
    assert replay(later, KEY).macs == "checked from entry 8 on"
    assert replay(later).macs == "unchecked from entry 8 on"


# Whoever rewrites the chain with consistent hashes must still follow the rules.


def test_no_column_can_be_changed_in_a_chain_written_anew():
    """Every third of them by day: each column in some entries, and each entry in some columns."""
    honest, stride = every_kind(), 3 if EFFORT == 1 else 1
    columns = ("account", "kind", "release_id", "input_digest", "charge", "events", "cost", "balance", "rung")
    for number, row in enumerate(honest.entries):
        for column in columns[number % stride :: stride]:
            entries = [dict(entry) for entry in honest.entries]
            entries[number][column] = row[column] + 1 if column == "rung" else row[column] + "x"
            refuse(Rows(honest.accounts, chain(entries), honest.outputs))
    head, entries = "0" * 64, []
    for entry in honest.rows.entries:  # and they are numbered from one
        row = entry | {"seq": entry["seq"] + 1, "prev_hash": head}
        head = row["hash"] = entry_hash(row)
        entries.append(row)
    refuse(Rows(honest.accounts, entries, honest.outputs), "entry 1 .* does not follow")


def test_a_forged_balance_is_found():
    honest = every_kind()
    for number, row in enumerate(honest.entries):
        state = ("reserved", "started", "committed")[number % 3]
        entries = [dict(entry) for entry in honest.entries]
        balance = json.loads(row["balance"])
        balance[state] = [part + 1 for part in balance[state]] or [0]
        entries[number]["balance"] = json.dumps(balance)
        refuse(Rows(honest.accounts, chain(entries), honest.outputs), f"entry {number + 1} .* balance")


def test_the_auditor_uses_no_code_of_the_store():
    package = Path(schema.__file__).parent
    allowed = ("rayprivacy.core", "rayprivacy.ledger.audit", "rayprivacy.ledger.book")
    for path in (package / "export.py", *(package / "audit").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert all(name.startswith(allowed) for name in names if name.startswith("rayprivacy")), path


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
def test_a_damaged_database_ends_in_one_sentence(tmp_path, statement):
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


def test_thousands_of_rows_take_seconds():
    book = Handmade(KEY).open("a", epsilon=50.0)
    cost = gdp_cost(50.0)
    for number in range(2_000):
        book.release("a", f"run-{number}", gaussian(50.0), cost)
    rows = book.rows
    before = time.process_time()
    assert replay(rows, KEY).entries == 6_001
    assert time.process_time() - before < 3  # a fifth of that on a quiet core


GARBAGE: list[Any] = [
    *(None, True, -1, 0, 10**30, 10**5000, 1.5, float("nan"), float("inf"), b"x", [], {}, "\udc80", "\x00", ""),
    *("NaN", "[NaN]", "1e999", "[1e999]", "null", "{}", "[]", "[" * 5000, "9" * 5000, f"[{'9' * 5000}]"),
    *('{"a":1,"a":1}', '{"kind":[]}', '{"kind":"gaussian","noise_multiplier":NaN}', '{"kind":"renyi"}'),
    *('{"kind":"gaussian","noise_multiplier":1e-101}', '{"kind":"gaussian","noise_multiplier":"1"}'),
    *('{"kind":"gaussian","noise_multiplier":true}', f'{{"kind":"gaussian","noise_multiplier":{"9" * 400}}}'),
    *('{"kind":"self-composed","count":1e3,"event":{"kind":"gaussian","noise_multiplier":9}}', '{"kind":"composed"}'),
    *('{"kind":"composed","events":[]}', '{"kind":"poisson-sampled-gaussian","sampling_probability":2}'),
    *('{"reserved":[1.0],"started":[0],"committed":[0]}', '{"reserved":[true],"started":[0],"committed":[0]}'),
    *('{"token":-1,"holder":"","until":""}', '{"token":1,"holder":1,"until":"x"}', '{"output_digest":1,"token":1}'),
    '{"unit":"user","relation":"replace","epsilon":1e308,"delta":1e-320,"composition":"gdp"}',
    '{"unit":"user","relation":"replace","epsilon":1e-300,"delta":0.5,"composition":"zcdp"}',
    '{"unit":"user","relation":"replace","epsilon":0,"delta":0.5,"composition":"rdp","parameters":{"order":1}}',
    '{"unit":[],"relation":{},"epsilon":3,"delta":0.5,"composition":"rdp","parameters":{"order":[[2]]}}',
]


@given(st.sampled_from(CELLS), st.sampled_from(GARBAGE), st.booleans())
def test_garbage_in_any_cell_ends_in_one_sentence(cell, value, relink):
    table, number, column = cell
    rows = copy(BOOK)
    getattr(rows, table)[number][column] = value
    if relink:
        with contextlib.suppress(TypeError, ValueError):  # what JSON cannot hold has no hash either
            rows = Rows(rows.accounts, chain(rows.entries, KEY), rows.outputs)
    try:
        replay(rows, KEY)
    except LedgerError as error:
        assert "\n" not in str(error)  # noqa: PT017
        assert str(error).endswith((".", "copy of it."))  # noqa: PT017


def test_extra_and_missing_columns_are_found():
    for table in ("accounts", "entries", "outputs"):
        more, less = copy(BOOK), copy(BOOK)
        getattr(more, table)[0]["more"] = 1
        getattr(less, table)[0].popitem()
        refuse(more, "columns")
        refuse(less, "columns")
