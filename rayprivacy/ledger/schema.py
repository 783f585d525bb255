"""The tables of a ledger: accounts, append-only entries, write-once outputs, and the version of these tables.

`accounts` holds what was fixed before the corpus was first touched. `entries` holds one row per step in the life
of a charge, chained by hashes (`chain`), never updated or deleted (triggers refuse it). `outputs` keeps, once, what a
committed charge released. A database of another version is refused, never changed.
"""

from sqlalchemy import DDL, Column, Float, Index, Integer, LargeBinary, MetaData, String, Table, Text, event

VERSION = 3

metadata = MetaData()

versions = Table("ledger_version", metadata, Column("version", Integer, primary_key=True, autoincrement=False))

accounts = Table(
    "accounts",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("unit", String(20), nullable=False),
    Column("relation", String(20), nullable=False),
    Column("epsilon", Float(53), nullable=False),
    Column("delta", Float(53), nullable=False),
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
    Column("blob", LargeBinary, nullable=False),
    Column("digest", String(64), nullable=False),
)


def _on(dialect: str, target: Table | MetaData, when: str, statement: str) -> None:
    """Run a statement of one database's own around the creation of the tables."""
    event.listen(target, when, DDL(statement).execute_if(dialect=dialect))  # type: ignore[no-untyped-call]


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
