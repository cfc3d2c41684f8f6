"""Runs the migrations on a connection that is handed over, or writes them as SQL.

`config.attributes` holds the `outbox` whose tables are meant, `options` for the version table, and
either a `connection`, whose transaction is the caller's, or a `dialect` to write SQL for.
"""

from alembic import context
from sqlalchemy import inspect
from sqlalchemy.schema import CreateSchema

attributes = context.config.attributes
tables = attributes["outbox"].tables


def create_schema() -> None:
    """Before the version table, which lives in it."""
    if tables.schema is None or context.get_context().dialect.name != "postgresql":
        return
    # IF NOT EXISTS alone would ask for the right to create schemas even where there is one.
    if context.is_offline_mode() or not inspect(attributes["connection"]).has_schema(tables.schema):
        context.execute(CreateSchema(tables.schema, if_not_exists=True))


if context.is_offline_mode():
    context.configure(
        dialect_name=attributes["dialect"],
        literal_binds=True,
        transactional_ddl=True,
        dialect_opts={"paramstyle": "named"},
        **attributes["options"],
    )
else:
    context.configure(connection=attributes["connection"], **attributes["options"])

with context.begin_transaction():
    create_schema()
    context.run_migrations()
