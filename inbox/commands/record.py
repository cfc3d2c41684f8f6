"""What is remembered of a command, one row to a tenant and key."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import DeclarativeBase, Mapped

from inbox.schema import tables


class CommandState(StrEnum):
    """The values are stored.

    PENDING    somebody runs the command, or did and died after committing the lock
    COMPLETED  its effect and this answer were committed together
    FAILED     it raised and was rolled back; the next one may try again
    """

    PENDING = "PENDING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class _Base(DeclarativeBase):
    """A MetaData of our own: your create_all and Alembic get the table with inbox.tables()."""


class IdempotencyRecord(_Base):
    """A row of `idempotency`, for queries of yours; written by SqlAlchemyIdempotency alone.

    `created_at` is when the key was locked, and so tells one attempt from the next.
    An `expires_at` of None is never. On SQLite times come without their zone, which is UTC.
    """

    __table__ = tables(_Base.metadata).idempotency

    if TYPE_CHECKING:
        idempotency_key: Mapped[str]
        tenant_id: Mapped[str]
        operation: Mapped[str]
        request_hash: Mapped[str | None]
        response: Mapped[Any]
        status_code: Mapped[int | None]
        state: Mapped[str]
        created_at: Mapped[datetime]
        expires_at: Mapped[datetime | None]
