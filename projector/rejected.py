"""Rows that cannot be published for their own sake. They are set aside, and their lane goes on.

What `emit` lets through is publishable. Such rows come from elsewhere: SQL by hand, another
language, or a limit that was lowered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Delete, delete, func, literal, select
from sqlalchemy.dialects.postgresql import insert as upsert  # SQLite renders its ON CONFLICT too
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox import fields
from outbox.errors import InvalidField
from outbox.tables import Tables
from projector.source.batch import Row


def fault(row: Row) -> str | None:
    """What is wrong with the row, if anything."""
    if row.data is None:
        return "it is larger than a projector publishes (event_bytes)"
    try:
        # Else its stream could be one of our own keys.
        fields.name("topic", row.topic)
    except InvalidField as exc:
        return str(exc)
    return None


@dataclass(frozen=True, slots=True)
class SetAside:
    """A rejected row, without its data."""

    row_id: int
    event_id: UUID
    lane: int
    topic: str
    type: str
    key: str
    size: int
    """Bytes of data."""
    cause: str
    rejected_at: datetime


@dataclass(frozen=True, slots=True)
class Rejected:
    """The rejected rows of one outbox."""

    engine: AsyncEngine
    tables: Tables

    async def set_aside(self, lane: int, causes: Mapping[int, str]) -> None:
        """Copy rows of the log, by their ids, with what is wrong with them. Before the lane passes
        them: after a crash in between it happens again, and changes nothing."""
        log, rejected = self.tables.log, self.tables.rejected
        names = [column.name for column in rejected.c if column.name in log.c]
        async with self.engine.begin() as connection:
            for row_id, cause in causes.items():
                found = select(log.c.id, literal(cause), *(log.c[name] for name in names))
                found = found.where(log.c.lane == lane, log.c.id == row_id)
                copy = upsert(rejected).from_select(["row_id", "cause", *names], found)
                await connection.execute(copy.on_conflict_do_nothing())

    async def newest(self, limit: int = 20) -> list[SetAside]:
        columns = self.tables.rejected.c
        wanted: list[Any] = [columns[field] for field in SetAside.__slots__ if field != "size"]
        wanted.insert(SetAside.__slots__.index("size"), func.length(columns.data))
        statement = select(*wanted).order_by(columns.rejected_at.desc(), columns.row_id.desc())
        async with self.engine.connect() as connection:
            return [SetAside(*row) for row in await connection.execute(statement.limit(limit))]

    async def retry(self, event_ids: Sequence[UUID]) -> int:
        """Put rows back at the end of the log, under new ids; what was wrong with them must be
        right by now. How many."""
        log, rejected = self.tables.log, self.tables.rejected
        names = [column.name for column in rejected.c if column.name in log.c]
        those = rejected.c.event_id.in_(event_ids)
        again = select(*(rejected.c[name] for name in names)).where(those).order_by("row_id")
        async with self.engine.begin() as connection:
            # Else it would be in the way of its own (topic, key, seq).
            await connection.execute(self._passed(event_ids))
            await connection.execute(log.insert().from_select(names, again))
            return (await connection.execute(delete(rejected).where(those))).rowcount

    async def discard(self, event_ids: Sequence[UUID]) -> int:
        """Forget rows, in the log too. How many."""
        rejected = self.tables.rejected
        those = rejected.c.event_id.in_(event_ids)
        async with self.engine.begin() as connection:
            await connection.execute(self._passed(event_ids))
            return (await connection.execute(delete(rejected).where(those))).rowcount

    def _passed(self, event_ids: Sequence[UUID]) -> Delete:
        """What is left of them in the log."""
        log, rejected = self.tables.log, self.tables.rejected
        rows = select(rejected.c.row_id).where(rejected.c.event_id.in_(event_ids))
        return delete(log).where(log.c.id.in_(rows), log.c.event_id.in_(event_ids))
