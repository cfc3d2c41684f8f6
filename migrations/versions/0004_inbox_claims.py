"""The records of claims that are kept in the database.

Written out, not taken from the metadata: a migration must not change when the code does.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    tables = context.config.attributes["outbox"].tables
    name = f"{tables.prefix}inbox_claims"
    # Unless they exist: create_all may have made them, with or without the outbox's tables.
    op.create_table(
        name,
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("version", sa.SmallInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=True),
        sa.Column("taken_over", sa.Boolean(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("heartbeat", sa.Double(), nullable=False),
        sa.Column("completed_at", sa.Double(), nullable=True),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f(f"{name}_pkey")),
        schema=tables.schema,
        if_not_exists=True,
    )
    op.create_index(
        op.f(f"{name}_expires_at_idx"),
        name,
        ["expires_at"],
        schema=tables.schema,
        if_not_exists=True,
    )


def downgrade() -> None:
    tables = context.config.attributes["outbox"].tables
    op.drop_table(f"{tables.prefix}inbox_claims", schema=tables.schema)
