"""The book: the tables of a ledger, its hash chain, and how rows are read and appended.

`accounts` holds what was fixed before the corpus was first touched; `entries` a row for each step in the life of a
charge; `outputs`, once, what a committed charge released. Triggers refuse updates and deletions.

Each entry names the hash of the one before: SHA-256 of the canonical JSON of every other field, `prev_hash` and `seq`
included. Changing, removing or reordering an entry breaks every later link. What a chain alone cannot show is a tail
cut off, or a whole ledger written anew. Against the first, a process that has seen a head asks for it again
(`Ledger.open(url, expected_head=...)`: runs and certificates carry heads). Against the second, a ledger may be kept
with a key: then every entry is authenticated.

>>> first = chain_entry(GENESIS, 1, account="a", kind="create", created_at="2026-01-01T00:00:00+00:00")
>>> second = chain_entry(first.hash, 2, account="a", kind="reserve", created_at="2026-01-01T00:00:01+00:00")
>>> second.prev_hash == first.hash
True
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sql
from sqlalchemy import Column, Connection, Index, Integer, String, Table, Text, bindparam

from rayprivacy.core.errors import EventError, LedgerError
from rayprivacy.core.keys import Key
from rayprivacy.core.private import digest_json

Values = dict[str, Any]  # of a row, or of the parameters of a statement, by name
VERSION = 3
GENESIS = "0" * 64

metadata = sql.MetaData()

versions = Table("ledger_version", metadata, Column("version", Integer, primary_key=True, autoincrement=False))

accounts = Table(
    "accounts",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("unit", String(20), nullable=False),
    Column("relation", String(20), nullable=False),
    Column("epsilon", sql.Float(53), nullable=False),
    Column("delta", sql.Float(53), nullable=False),
    Column("composition", String(20), nullable=False),
    Column("created_at", String(40), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("corpus", String(200), nullable=False),
    Column("parameters", Text, nullable=False),
)

entries = Table(
    "entries",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("account", String(200), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("created_at", String(40), nullable=False),
    Column("prev_hash", String(64), nullable=False),
    Column("release_id", String(200), nullable=False),
    Column("input_digest", String(64), nullable=False),
    Column("charge", String(64), nullable=False, index=True),
    Column("events", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("hash", String(64), nullable=False, unique=True),
    Column("rung", Integer, nullable=False),
    Column("cost", Text, nullable=False),
    Column("balance", Text, nullable=False),
    Column("mac", String(64), nullable=False),
    Index("ix_entries_account_seq", "account", "seq"),
    Index("ix_entries_account_release", "account", "release_id"),
)

outputs = Table(
    "outputs",
    metadata,
    Column("charge", String(64), primary_key=True),
    Column("release_id", String(200), nullable=False),
    Column("input_digest", String(64), nullable=False),
    Column("blob", sql.LargeBinary, nullable=False),
    Column("digest", String(64), nullable=False),
)


def _on(dialect: str, target: Table | sql.MetaData, when: str, statement: str) -> None:
    """Run a statement of one database's own around the creation of the tables."""
    sql.event.listen(target, when, sql.DDL(statement).execute_if(dialect=dialect))  # type: ignore[no-untyped-call]


_on(
    "postgresql",
    metadata,
    "before_create",
    "CREATE OR REPLACE FUNCTION rayprivacy_append_only() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION '%% is append-only', TG_TABLE_NAME; END $$",
)
for _table in (accounts, entries, outputs):
    _on(
        "postgresql",
        _table,
        "after_create",
        f"CREATE TRIGGER {_table.name}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {_table.name} "
        "FOR EACH STATEMENT EXECUTE FUNCTION rayprivacy_append_only()",
    )
    for _change in ("UPDATE", "DELETE"):
        _on(
            "sqlite",
            _table,
            "after_create",
            f"CREATE TRIGGER {_table.name}_no_{_change.lower()} BEFORE {_change} ON {_table.name} "
            f"BEGIN SELECT RAISE(ABORT, '{_table.name} is append-only'); END",
        )


class Query:
    """One statement with named parameters, written once; the driver runs it faster, and other writers wait for it."""

    def __init__(self, statement: sql.ClauseElement) -> None:
        self._statement = statement
        self._compiled: dict[str, tuple[str, Values]] = {}

    def rows(self, connection: Connection, **values: Any) -> list[Any]:
        """Every row of the result, as tuples."""
        return list(self._execute(connection, values).fetchall())

    def first(self, connection: Connection, **values: Any) -> Any:
        """The first row, or None."""
        return next(iter(self.rows(connection, **values)), None)

    def run(self, connection: Connection, **values: Any) -> None:
        """Execute a statement without a result."""
        self._execute(connection, values)

    def _execute(self, connection: Connection, values: Values) -> Any:
        text, constants = self._text(connection.dialect)
        cursor = connection.connection.cursor()
        cursor.execute(text, constants | values)
        return cursor

    def _text(self, dialect: sql.Dialect) -> tuple[str, Values]:
        if dialect.name not in self._compiled:
            named = type(dialect)(paramstyle={"sqlite": "named", "postgresql": "pyformat"}[dialect.name])  # type: ignore[call-arg]
            compiled = self._statement.compile(dialect=named)
            constants = {name: value for name, value in compiled.params.items() if value is not None}
            self._compiled[dialect.name] = str(compiled), constants
        return self._compiled[dialect.name]


def find(connection: Connection, table: Table, **values: Any) -> list[Values]:
    """The rows of a table whose columns have these values, or values from one to the other of a pair, in any order."""
    bound: Values = {}
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
    return Query(sql.select(table).where(*conditions))


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


_E = entries.c
_SEEN = sql.select(_E.hash).where(_E.seq == bindparam("seen")).scalar_subquery()
_LAST = Query(sql.select(_E.seq, _E.hash, _E.mac, _E.account, _E.balance, _SEEN).order_by(_E.seq.desc()).limit(1))
_BALANCE = Query(sql.select(_E.balance).where(_E.account == bindparam("account")).order_by(_E.seq.desc()).limit(1))
_CHARGED = Query(sql.select(_E.seq).where(_E.account == bindparam("account"), _E.kind == "reserve").limit(1))
_INSERT = Query(sql.insert(entries))


@dataclass(frozen=True)
class Entry:
    """One row of the ledger; `release_id`, `input_digest` and `charge` are empty for `create`, `meaning` and `plan`.

    JSON: `events`, what a `reserve` pays for; `cost`, the integers it takes; `balance`, the account's totals
    afterwards; `detail`, what else the entry fixes (terms, lease, digest of the output). `rung` is 0 for a release
    charged as a whole, `mac` the hash authenticated with the ledger's key. `created_at` (UTC) is for people.
    """

    seq: int
    account: str
    kind: str
    created_at: str
    prev_hash: str
    release_id: str = ""
    input_digest: str = ""
    charge: str = ""
    events: str = ""
    detail: str = ""
    hash: str = ""
    rung: int = 0
    cost: str = ""
    balance: str = ""
    mac: str = ""

    @property
    def facts(self) -> Any:
        """The detail as JSON values."""
        return json.loads(self.detail) if self.detail else {}


def chain_entry(prev_hash: str, seq: int, **facts: Any) -> Entry:
    """A new entry, linked and hashed; `rung`, `cost` and `balance` are hashed only where they say something."""
    entry = Entry(seq=seq, prev_hash=prev_hash, **facts)
    content = {name: value for name, value in vars(entry).items() if value or name not in ("rung", "cost", "balance")}
    del content["hash"], content["mac"]
    return replace(entry, hash=digest_json(content))


class Head(NamedTuple):
    """Where the ledger ended when it was last seen."""

    seq: int
    hash: str


class _Last(NamedTuple):
    """What is read of the last row; `hash_at_seen` is the hash of the row that was seen before, if any."""

    seq: int = 0
    hash: str = GENESIS
    mac: str = ""
    account: str = ""
    balance: str = ""
    hash_at_seen: str | None = None


def _last(connection: Connection, seen: int) -> _Last:
    """The last row as it stands, unchecked; the genesis for an empty ledger."""
    return _Last(*(_LAST.first(connection, seen=seen) or ()))


class Tail:
    """The end of the ledger in one write transaction; another key, or the lack of the end `seen` before, is refused."""

    def __init__(self, connection: Connection, key: Key | None, seen: Head) -> None:
        self.connection = connection
        self._key = key
        self._last = _last(connection, seen.seq)
        with decoding("the last entry"):
            if not (isinstance(self._last.seq, int) and isinstance(self._last.hash, str)):
                raise TypeError
        if self._last.mac and (key is None or _mac(key, self._last.hash) != self._last.mac):
            raise LedgerError("the ledger is kept with a key: give its key file (privacy.ledger_key, --ledger-key).")
        if seen.seq and self._last.hash_at_seen != seen.hash:
            raise older_copy(seen.hash)

    @property
    def head(self) -> Head:
        """Where the ledger ends now."""
        return Head(self._last.seq, self._last.hash)

    def balance(self, account: str) -> str:
        """The JSON of an account's totals after its last entry."""
        last = self._last
        return str(last.balance) if last.account == account else last_balance(self.connection, account)

    def append(self, **facts: Any) -> Entry:
        """Write the next entry."""
        facts.setdefault("created_at", datetime.now(UTC).isoformat(timespec="seconds"))
        entry = chain_entry(self.head.hash, self.head.seq + 1, **facts)
        entry = replace(entry, mac=_mac(self._key, entry.hash)) if self._key else entry
        _INSERT.run(self.connection, **vars(entry))
        self._last = _Last(entry.seq, entry.hash, entry.mac, entry.account, entry.balance)
        return entry


def last_balance(connection: Connection, account: str) -> str:
    """The JSON of an account's totals after its last entry."""
    return str(next(iter(_BALANCE.first(connection, account=account) or ()), ""))


def is_charged(connection: Connection, account: str) -> bool:
    """Whether anything was ever reserved under an account, also if it was cancelled since."""
    return _CHARGED.first(connection, account=account) is not None


def older_copy(digest: str) -> LedgerError:
    """What to raise when the ledger lacks an entry that was seen earlier."""
    return LedgerError(
        f"the ledger lacks the entry {digest[:12]} seen earlier: an older copy was put back, so restore the newest one."
    )


def _mac(key: Key, digest: str) -> str:
    return key.digest("ledger-entry", digest)


def read(connection: Connection, **values: Any) -> list[Entry]:
    """The entries whose columns have these values, as in `find`, in order."""
    # Sorted here: to save the sort, a database may choose to walk a whole account in the order of its entries.
    with decoding("the entries"):
        return sorted((Entry(**row) for row in find(connection, entries, **values)), key=lambda entry: entry.seq)


def head(connection: Connection) -> Head:
    """The end of the ledger, unchecked so that a damaged one can be opened and verified; GENESIS for an empty one."""
    last = _last(connection, seen=0)
    return Head(last.seq, last.hash)


def contains(connection: Connection, digest: str) -> bool:
    """Whether the ledger holds an entry of this hash."""
    return digest == GENESIS or bool(read(connection, hash=digest))
