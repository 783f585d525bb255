"""Accounts, append-only hash-chained entries, write-once outputs."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = ("accounts", "entries", "outputs")


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("unit", sa.String(20), nullable=False),
        sa.Column("relation", sa.String(20), nullable=False),
        sa.Column("epsilon", sa.Float(53), nullable=False),
        sa.Column("delta", sa.Float(53), nullable=False),
        sa.Column("composition", sa.String(20), nullable=False),
        sa.Column("created_at", sa.String(40), nullable=False),
    )
    op.create_table(
        "entries",
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("account", sa.String(200), nullable=False, index=True),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("release_id", sa.String(200), nullable=False),
        sa.Column("input_digest", sa.String(64), nullable=False),
        sa.Column("charge", sa.String(64), nullable=False, index=True),
        sa.Column("events", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("created_at", sa.String(40), nullable=False),
        sa.Column("prev_hash", sa.String(64), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False, unique=True),
    )
    op.create_table(
        "outputs",
        sa.Column("charge", sa.String(64), primary_key=True),
        sa.Column("release_id", sa.String(200), nullable=False),
        sa.Column("input_digest", sa.String(64), nullable=False),
        sa.Column("blob", sa.LargeBinary, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
    )
    (_postgresql_triggers if op.get_bind().dialect.name == "postgresql" else _sqlite_triggers)()


def _sqlite_triggers() -> None:
    for table in TABLES:
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )


def _postgresql_triggers() -> None:
    op.execute(
        "CREATE FUNCTION rayprivacy_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
    )
    for table in TABLES:
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION rayprivacy_append_only()"
        )
