"""Topics that are held back by hand. Kept in the database: an emptied Redis lets none go."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert as upsert  # SQLite renders its ON CONFLICT too
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox import fields
from outbox.tables import Tables


@dataclass(frozen=True, slots=True)
class Paused:
    """The paused topics of one outbox. Projectors ask for them whenever they renew their leases."""

    engine: AsyncEngine
    tables: Tables

    async def topics(self) -> frozenset[str]:
        async with self.engine.connect() as connection:
            found = await connection.execute(select(self.tables.paused.c.topic))
            return frozenset(found.scalars())

    async def pause(self, topic: str) -> None:
        statement = upsert(self.tables.paused).values(topic=fields.name("topic", topic))
        async with self.engine.begin() as connection:
            await connection.execute(statement.on_conflict_do_nothing())

    async def resume(self, topic: str) -> bool:
        """Whether it was paused."""
        paused = self.tables.paused
        async with self.engine.begin() as connection:
            gone = await connection.execute(delete(paused).where(paused.c.topic == topic))
            return bool(gone.rowcount)
