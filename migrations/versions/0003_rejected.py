"""Rows that were set aside, topics that are paused, and how far each lane is pruned.

Written out, not taken from the metadata: a migration must not change when the code does.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    tables = context.config.attributes["outbox"].tables
    rejected, paused = (f"{tables.prefix}outbox_{name}" for name in ("rejected", "paused"))
    op.create_table(
        rejected,
        sa.Column("row_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("lane", sa.SmallInteger(), nullable=False),
        sa.Column("event_id", sa.Uuid(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=True),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("content_type", sa.Text(), nullable=False),
        sa.Column("traceparent", sa.Text(), nullable=True),
        sa.Column("tracestate", sa.Text(), nullable=True),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("headers", sa.Text(), nullable=True),
        now("created_at"),
        sa.Column("cause", sa.Text(), nullable=False),
        now("rejected_at"),
        sa.PrimaryKeyConstraint("row_id", "event_id", name=op.f(f"{rejected}_pkey")),
        schema=tables.schema,
    )
    op.create_table(
        paused,
        sa.Column("topic", sa.Text(), nullable=False),
        now("paused_at"),
        sa.PrimaryKeyConstraint("topic", name=op.f(f"{paused}_pkey")),
        schema=tables.schema,
    )
    pruned_to = sa.Column("pruned_to", sa.BigInteger(), nullable=True)
    op.add_column(f"{tables.prefix}outbox_checkpoint", pruned_to, schema=tables.schema)


def downgrade() -> None:
    tables = context.config.attributes["outbox"].tables
    with op.batch_alter_table(f"{tables.prefix}outbox_checkpoint", schema=tables.schema) as table:
        table.drop_column("pruned_to")
    for name in ("paused", "rejected"):
        op.drop_table(f"{tables.prefix}outbox_{name}", schema=tables.schema)


def now(name: str) -> sa.Column[Any]:
    kind = sa.DateTime(timezone=True)
    return sa.Column(name, kind, server_default=sa.func.now(), nullable=False)
