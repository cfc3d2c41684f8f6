"""The events that a SQL inbox has seen handled.

Written out, not taken from the metadata: a migration must not change when the code does.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    tables = context.config.attributes["outbox"].tables
    name = f"{tables.prefix}inbox_handled"
    # Unless they exist: create_all may have made them, with or without the outbox's tables.
    op.create_table(
        name,
        sa.Column("consumer", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column(
            "handled_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
        ),
        sa.PrimaryKeyConstraint("consumer", "event_id", name=op.f(f"{name}_pkey")),
        schema=tables.schema,
        if_not_exists=True,
    )
    op.create_index(
        op.f(f"{name}_handled_at_idx"),
        name,
        ["handled_at"],
        schema=tables.schema,
        if_not_exists=True,
    )


def downgrade() -> None:
    tables = context.config.attributes["outbox"].tables
    op.drop_table(f"{tables.prefix}inbox_handled", schema=tables.schema)
