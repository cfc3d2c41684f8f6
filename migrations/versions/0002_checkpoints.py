"""How far each lane is published and acknowledged, and which consumer groups are known.

Written out, not taken from the metadata: a migration must not change when the code does.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    tables = context.config.attributes["outbox"].tables
    checkpoint, groups = (f"{tables.prefix}outbox_{name}" for name in ("checkpoint", "groups"))
    op.create_table(
        checkpoint,
        sa.Column("lane", sa.SmallInteger(), nullable=False),
        sa.Column("consumer", sa.Text(), nullable=False),
        sa.Column("position", sa.Text(), nullable=False),
        now("updated_at"),
        sa.PrimaryKeyConstraint("lane", "consumer", name=op.f(f"{checkpoint}_pkey")),
        schema=tables.schema,
    )
    op.create_table(
        groups,
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        now("created_at"),
        sa.PrimaryKeyConstraint("topic", "name", name=op.f(f"{groups}_pkey")),
        schema=tables.schema,
    )


def downgrade() -> None:
    tables = context.config.attributes["outbox"].tables
    for name in ("groups", "checkpoint"):
        op.drop_table(f"{tables.prefix}outbox_{name}", schema=tables.schema)


def now(name: str) -> sa.Column[Any]:
    kind = sa.DateTime(timezone=True)
    return sa.Column(name, kind, server_default=sa.func.now(), nullable=False)
