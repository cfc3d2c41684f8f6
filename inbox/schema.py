"""The tables of this package, on a MetaData of yours."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
)
from sqlalchemy.schema import conv

from outbox.tables import MARK


@dataclass(frozen=True, slots=True)
class InboxTables:
    """claims  the records of SqlAlchemyStore, one to a key"""

    claims: Table


def tables(metadata: MetaData, *, schema: str | None = None, prefix: str = "") -> InboxTables:
    """Put our tables on `metadata`, for create_all and for Alembic's autogenerate.

    Called again for the same place, gives the tables that are there. `projector migrate` makes the
    same ones, with the outbox's `schema` and `prefix`.
    """
    name = f"{prefix}inbox_claims"
    found = metadata.tables.get(f"{schema}.{name}" if schema else name)
    return InboxTables(claims=_claims(metadata, schema, name) if found is None else found)


def _claims(metadata: MetaData, schema: str | None, name: str) -> Table:
    # Times are seconds since 1970 by the database's clock: SQLite has no type for them, and both
    # databases can add to a number. conv() keeps naming conventions from renaming what we name.
    table = Table(
        name,
        metadata,
        Column("key", Text, nullable=False),
        Column("version", SmallInteger, nullable=False),
        Column("state", Text, nullable=False),
        Column("token", Text, nullable=False),
        Column("fence", BigInteger, nullable=False),
        Column("fingerprint", Text, nullable=False),
        Column("payload", LargeBinary, nullable=True),
        Column("taken_over", Boolean, nullable=False),
        Column("started_at", Double, nullable=False),
        Column("heartbeat", Double, nullable=False),
        Column("completed_at", Double, nullable=True),
        Column("expires_at", Double, nullable=False),
        PrimaryKeyConstraint("key", name=conv(f"{name}_pkey")),
        schema=schema,
        info={MARK: True},
    )
    Index(conv(f"{name}_expires_at_idx"), table.c.expires_at)
    return table
