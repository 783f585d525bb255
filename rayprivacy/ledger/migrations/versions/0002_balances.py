"""Costs and running balances in the book, message authentication, kinds of accounts and the corpora they share."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("accounts", sa.Column("kind", sa.String(20), nullable=False, server_default="central"))
    op.add_column("accounts", sa.Column("corpus", sa.String(200), nullable=False, server_default=""))
    op.add_column("accounts", sa.Column("parameters", sa.Text, nullable=False, server_default="{}"))
    op.add_column("entries", sa.Column("rung", sa.Integer, nullable=False, server_default="0"))
    op.add_column("entries", sa.Column("cost", sa.Text, nullable=False, server_default=""))
    op.add_column("entries", sa.Column("balance", sa.Text, nullable=False, server_default=""))
    op.add_column("entries", sa.Column("mac", sa.String(64), nullable=False, server_default=""))
    op.drop_index("ix_entries_account", "entries")  # the two below begin with the same column
    op.create_index("ix_entries_account_seq", "entries", ["account", "seq"])
    op.create_index("ix_entries_account_release", "entries", ["account", "release_id"])
