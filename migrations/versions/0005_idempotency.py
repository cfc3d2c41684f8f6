"""The records of commands.

Written out, not taken from the metadata: a migration must not change when the code does.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    tables = context.config.attributes["outbox"].tables
    name = f"{tables.prefix}idempotency"
    # Unless they exist: create_all may have made them, with or without the outbox's tables.
    op.create_table(
        name,
        sa.Column("idempotency_key", sa.String(64), nullable=False),
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("operation", sa.String(128), nullable=False),
        sa.Column("request_hash", sa.String(64), nullable=True),
        sa.Column("response", sa.JSON(), nullable=True),
        sa.Column("status_code", sa.Integer(), server_default=sa.text("200"), nullable=True),
        sa.Column("state", sa.String(20), server_default=sa.text("'PENDING'"), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.func.now(),
            nullable=False,
        ),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "idempotency_key", name=op.f(f"{name}_pkey")),
        schema=tables.schema,
        if_not_exists=True,
    )
    for index, column in (("tenant", "tenant_id"), ("expires", "expires_at")):
        op.create_index(
            op.f(f"ix_{name}_{index}"),
            name,
            [column],
            schema=tables.schema,
            if_not_exists=True,
        )


def downgrade() -> None:
    tables = context.config.attributes["outbox"].tables
    op.drop_table(f"{tables.prefix}idempotency", schema=tables.schema)
