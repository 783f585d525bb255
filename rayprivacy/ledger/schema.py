"""The tables of a ledger: accounts, append-only entries, write-once outputs.

`accounts` holds what was fixed before the corpus was first touched. `entries` holds one row per step in the life
of a charge, chained by hashes (`chain`), never updated or deleted (triggers refuse it). `outputs` keeps, once, what a
committed charge released. The migrations create these tables; this module is what queries are written against. Columns
with a server default came after the first schema: rows written before hold that default.
"""

from sqlalchemy import Column, Float, Index, Integer, LargeBinary, MetaData, String, Table, Text

REVISION = "0002"  # the migration that this code reads and writes

metadata = MetaData()

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
    Column("kind", String(20), nullable=False, server_default="central"),
    Column("corpus", String(200), nullable=False, server_default=""),
    Column("parameters", Text, nullable=False, server_default="{}"),
)

entries = Table(
    "entries",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("account", String(200), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("release_id", String(200), nullable=False),
    Column("input_digest", String(64), nullable=False),
    Column("charge", String(64), nullable=False, index=True),
    Column("events", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("created_at", String(40), nullable=False),
    Column("prev_hash", String(64), nullable=False),
    Column("hash", String(64), nullable=False, unique=True),
    Column("rung", Integer, nullable=False, server_default="0"),
    Column("cost", Text, nullable=False, server_default=""),
    Column("balance", Text, nullable=False, server_default=""),
    Column("mac", String(64), nullable=False, server_default=""),
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
