"""The log, delayed events, counters and the meta row.

Written out, not taken from the metadata: a migration must not change when the code does.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op

from outbox.types import XID8

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    outbox = context.config.attributes["outbox"]
    prefix, schema = outbox.tables.prefix, outbox.tables.schema
    create_log(f"{prefix}outbox", schema, outbox.lanes)
    create_delayed(f"{prefix}outbox_delayed", schema)
    create_seq(f"{prefix}outbox_seq", schema)
    meta = create_meta(f"{prefix}outbox_meta", schema)
    op.bulk_insert(meta, [{"name": outbox.name, "lanes": outbox.lanes}])


def downgrade() -> None:
    tables = context.config.attributes["outbox"].tables
    for name in ("outbox_meta", "outbox_seq", "outbox_delayed", "outbox"):
        op.drop_table(f"{tables.prefix}{name}", schema=tables.schema)


def create_log(name: str, schema: str | None, lanes: int) -> None:
    on_sqlite = op.get_context().dialect.name == "sqlite"
    key = ("id",) if on_sqlite else ("lane", "id")
    op.create_table(
        name,
        # xid before id: defaults are drawn in the order of the columns.
        sa.Column("xid", sa.BigInteger(), server_default=sa.text("0"), nullable=False)
        if on_sqlite
        else sa.Column(
            "xid", XID8(), server_default=sa.text("pg_current_xact_id()"), nullable=False
        ),
        number("id", sa.Identity(always=True, cache=1)),
        sa.Column("lane", sa.SmallInteger(), nullable=False),
        *event_columns(sa.Column("seq", sa.BigInteger(), nullable=True)),
        sa.PrimaryKeyConstraint(*key, name=op.f(f"{name}_pkey")),
        sa.CheckConstraint(f"lane >= 0 AND lane < {lanes}", name=op.f(f"{name}_lane_check")),
        schema=schema,
        sqlite_autoincrement=True,
    )
    op.create_index(op.f(f"{name}_xid_idx"), name, ["xid", "id"], schema=schema)
    op.create_index(
        op.f(f"{name}_seq_idx"),
        name,
        ["topic", "key", "seq"],
        unique=True,
        schema=schema,
        postgresql_where=sa.text("seq IS NOT NULL"),
        sqlite_where=sa.text("seq IS NOT NULL"),
    )


def create_delayed(name: str, schema: str | None) -> None:
    op.create_table(
        name,
        number("id", sa.Identity(always=True)),
        sa.Column("deliver_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lane", sa.SmallInteger(), nullable=False),
        *event_columns(sa.Column("auto", sa.Boolean(), nullable=False)),
        sa.PrimaryKeyConstraint("id", name=op.f(f"{name}_pkey")),
        schema=schema,
        sqlite_autoincrement=True,
    )
    op.create_index(op.f(f"{name}_deliver_at_idx"), name, ["deliver_at", "id"], schema=schema)


def create_seq(name: str, schema: str | None) -> None:
    op.create_table(
        name,
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("topic", "key", name=op.f(f"{name}_pkey")),
        schema=schema,
    )


def create_meta(name: str, schema: str | None) -> sa.Table:
    return op.create_table(
        name,
        sa.Column(
            "singleton",
            sa.SmallInteger(),
            server_default=sa.text("1"),
            autoincrement=False,
            nullable=False,
        ),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("lanes", sa.SmallInteger(), nullable=False),
        sa.CheckConstraint("singleton = 1", name=op.f(f"{name}_singleton_check")),
        sa.PrimaryKeyConstraint("singleton", name=op.f(f"{name}_pkey")),
        schema=schema,
    )


def number(name: str, identity: sa.Identity) -> sa.Column[Any]:
    if op.get_context().dialect.name == "sqlite":
        return sa.Column(name, sa.Integer(), nullable=False)
    return sa.Column(name, sa.BigInteger(), identity, nullable=False)


def event_columns(numbered_by: sa.Column[Any]) -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("event_id", sa.Uuid(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        numbered_by,
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("content_type", sa.Text(), nullable=False),
        sa.Column("traceparent", sa.Text(), nullable=True),
        sa.Column("tracestate", sa.Text(), nullable=True),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("headers", sa.Text(), nullable=True),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
        ),
    )
