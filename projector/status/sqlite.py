"""What SQLite knows. Its writers come one after another, so that nothing is late and no horizon is
held back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Select, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.tables import Tables
from projector.errors import ProjectorError
from projector.position import Origin
from projector.source.batch import Topics
from projector.source.sqlite import ORIGIN
from projector.status.backlog import FreshFound, LateFound, Part, backlog_of
from projector.status.reader import SCANNED, lane_count
from projector.status.report import Backlog, Holder


class NoFile(ProjectorError):
    """There is no database file; connecting would make one."""

    def __init__(self, file: str) -> None:
        super().__init__(f"there is no database file {file}")
        self.file = file


def check_file(url: URL) -> None:
    if url.database and not Path(url.database).exists():
        raise NoFile(url.database)


@dataclass(frozen=True, slots=True)
class SqliteReader:
    """Reads one outbox on one connection."""

    connection: AsyncConnection
    tables: Tables

    async def lanes(self, name: str) -> int:
        meta, log = self.tables.meta.c, self.tables.log.c
        found = await self._fetch(select(meta.name, meta.lanes))
        stored, lanes = found[0] if found else (None, None)
        ((highest,),) = await self._fetch(select(func.max(log.lane)))
        return lane_count(name, stored, lanes, highest)

    async def origin(self) -> Origin:
        return ORIGIN

    async def backlogs(
        self, parts: Sequence[Part], limit: int = SCANNED
    ) -> list[tuple[Backlog, timedelta | None]]:
        found = [await self._fresh(part, limit) for part in parts]
        return [(backlog_of(each, LateFound(), limit), each.position_age) for each in found]

    async def horizon(self) -> tuple[Holder, ...]:
        return ()

    async def _fresh(self, part: Part, limit: int) -> FreshFound:
        log = self.tables.log.c
        columns = select(log.id, log.topic, log.created_at).where(log.lane == part.lane)
        rows = await self._fetch(columns.where(log.id > part.above).order_by(log.id).limit(limit))
        at = await self._fetch(columns.where(log.id == part.above))
        ((top,),) = await self._fetch(select(func.max(log.id)).where(log.lane == part.lane))
        wanted = [row.created_at for row in rows if _wanted(row.topic, part.topics)]
        return FreshFound(
            scanned=len(rows),
            found=len(wanted),
            first=rows[0].id if rows else None,
            last=rows[-1].id if rows else None,
            top=top,
            oldest=_age(min(wanted)) if wanted else None,
            position_age=_age(at[0].created_at) if at else None,
        )

    async def _fetch(self, statement: Select[Any]) -> list[Any]:
        rows = list((await self.connection.execute(statement)).all())
        await self.connection.rollback()  # nothing stays open
        return rows


def _wanted(topic: str, topics: Topics) -> bool:
    return topics.only in (None, topic) and topic not in topics.without


def _age(created_at: datetime) -> timedelta:
    return datetime.now(UTC) - created_at.replace(tzinfo=UTC)
