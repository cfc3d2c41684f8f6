"""What PostgreSQL knows: the lanes, what is not yet published, and what holds the horizon back.

Every read is a short, read-only transaction with a time limit of its own.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib import resources
from typing import Any

from projector.position import Origin
from projector.source.postgres import identify
from projector.status.backlog import FreshFound, LateFound, Part, backlog_of
from projector.status.reader import SCANNED, lane_count
from projector.status.report import Backlog, Holder

HOLDERS = 5


@dataclass(frozen=True, slots=True)
class PostgresReader:
    """Reads one outbox on asyncpg's own connection."""

    connection: Any
    log: str
    """The quoted table of the events."""
    meta: str
    limit: timedelta
    """The time that a statement may take."""

    async def lanes(self, name: str) -> int:
        (row,) = await self._fetch("lanes")
        return lane_count(name, *row)

    async def origin(self) -> Origin:
        async with self._transaction():
            return await identify(self.connection)

    async def backlogs(
        self, parts: Sequence[Part], limit: int = SCANNED
    ) -> list[tuple[Backlog, timedelta | None]]:
        fresh = await self._fetch("fresh", _fresh(parts), limit)
        late = await self._fetch("late", _late(parts), limit)
        above = {number: FreshFound(*found) for number, *found in fresh}
        below = {number: LateFound(*found) for number, *found in late}
        return [
            (
                backlog_of(above[number], below.get(number, LateFound()), limit),
                above[number].position_age,
            )
            for number in range(len(parts))
        ]

    async def horizon(self) -> tuple[Holder, ...]:
        return tuple(Holder(*row) for row in await self._fetch("horizon", HOLDERS))

    async def _fetch(self, statement: str, *arguments: Any) -> Any:
        text = _sql(statement).replace("{log}", self.log).replace("{meta}", self.meta)
        async with self._transaction():
            return await self.connection.fetch(text, *arguments)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[None]:
        async with self.connection.transaction(readonly=True):
            # Statistics of an empty table must not make the planner read all of a full one.
            await self.connection.execute(
                f"set local statement_timeout = {self.limit // timedelta(milliseconds=1)};"
                "set local enable_seqscan = off; set local enable_bitmapscan = off"
            )
            yield


def _fresh(parts: Sequence[Part]) -> str:
    return json.dumps(
        [
            {"part": number, "lane": part.lane, "above": part.above, **part.topics._asdict()}
            for number, part in enumerate(parts)
        ]
    )


def _late(parts: Sequence[Part]) -> str:
    return json.dumps(
        [
            {
                "part": number,
                "lane": part.lane,
                "low": late.low,
                "high": late.high,
                "xids": [str(xid) for xid in late.xids],
                **part.topics._asdict(),
            }
            for number, part in enumerate(parts)
            for late in part.late
        ]
    )


@cache
def _sql(name: str) -> str:
    return (resources.files("projector.status") / "sql" / f"{name}.sql").read_text("utf-8")
