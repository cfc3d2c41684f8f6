"""The tables of this package, on a MetaData of yours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    Table,
    Text,
    func,
    text,
)
from sqlalchemy.schema import conv

from outbox.tables import MARK

KEY_LENGTH, OPERATION_LENGTH, HASH_LENGTH = 64, 128, 64
"""Of a command, in characters. A tenant may be as long as a key."""

DEFAULT_STATUS = 200


@dataclass(frozen=True, slots=True)
class InboxTables:
    """
    claims       the records of SqlAlchemyStore, one to a key
    idempotency  the records of SqlAlchemyIdempotency, one to a tenant and key
    handled      the events that SqlInbox has seen handled, by group
    """

    claims: Table
    idempotency: Table
    handled: Table


def tables(metadata: MetaData, *, schema: str | None = None, prefix: str = "") -> InboxTables:
    """Put our tables on `metadata`, for create_all and for Alembic's autogenerate.

    Called again for the same place, gives the tables that are there. `projector migrate` makes the
    same ones, with the outbox's `schema` and `prefix`.
    """

    def put(name: str, make: Callable[[MetaData, str | None, str], Table]) -> Table:
        found = metadata.tables.get(f"{schema}.{prefix}{name}" if schema else f"{prefix}{name}")
        return make(metadata, schema, f"{prefix}{name}") if found is None else found

    return InboxTables(
        claims=put("inbox_claims", _claims),
        idempotency=put("idempotency", _idempotency),
        handled=put("inbox_handled", _handled),
    )


def _handled(metadata: MetaData, schema: str | None, name: str) -> Table:
    table = Table(
        name,
        metadata,
        Column("consumer", Text, nullable=False),
        Column("event_id", Text, nullable=False),
        Column("handled_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
        PrimaryKeyConstraint("consumer", "event_id", name=conv(f"{name}_pkey")),
        schema=schema,
        info={MARK: True},
    )
    Index(conv(f"{name}_handled_at_idx"), table.c.handled_at)
    return table


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


def _idempotency(metadata: MetaData, schema: str | None, name: str) -> Table:
    table = Table(
        name,
        metadata,
        Column("idempotency_key", String(KEY_LENGTH), nullable=False),
        Column("tenant_id", String(KEY_LENGTH), nullable=False),
        Column("operation", String(OPERATION_LENGTH), nullable=False),
        Column("request_hash", String(HASH_LENGTH), nullable=True),
        Column("response", JSON, nullable=True),
        Column("status_code", Integer, nullable=True, server_default=text(f"{DEFAULT_STATUS}")),
        Column("state", String(20), nullable=False, server_default=text("'PENDING'")),
        Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
        Column("expires_at", DateTime(timezone=True), nullable=True),
        PrimaryKeyConstraint("tenant_id", "idempotency_key", name=conv(f"{name}_pkey")),
        schema=schema,
        info={MARK: True},
    )
    Index(conv(f"ix_{name}_tenant"), table.c.tenant_id)
    Index(conv(f"ix_{name}_expires"), table.c.expires_at)
    return table
