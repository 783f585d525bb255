"""Run migrations on the connection that `rayprivacy.ledger.database` hands over, inside its transaction."""

from alembic import context

from rayprivacy.ledger.schema import metadata

if hasattr(context, "config"):  # alembic sets it while it runs migrations, and only then
    connection = context.config.attributes["connection"]
    context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True)
    with context.begin_transaction():
        context.run_migrations()
