"""Deletes rows that nobody needs any more, lane by lane and in small steps."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, delete, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.sql.dml import ReturningDelete

from outbox import Outbox
from projector.checkpoint import PUBLISHED, Checkpoints
from projector.position import Position
from projector.source.sqlite import end_of

log = logging.getLogger("projector.janitor")

AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Pruner:
    """`retention`: how long rows stay after every group has acknowledged them. `keep_at_most`:
    after this long they go even if a group has not; None waits for it for ever."""

    engine: AsyncEngine
    outbox: Outbox
    checkpoints: Checkpoints
    retention: timedelta
    keep_at_most: timedelta | None = None

    async def prune(self, lane: int, now: datetime | None = None) -> int:
        """How many rows were deleted. Never one that is not published."""
        now = now or datetime.now(UTC)
        count = await self._delete(
            lane, await self.checkpoints.acknowledged(lane), now - self.retention
        )
        if self.keep_at_most is not None:
            published = (await self.checkpoints.load(lane)).get(PUBLISHED)
            given_up = await self._delete(lane, published, now - self.keep_at_most)
            if given_up:
                log.error(
                    "rows that a group has yet to acknowledge were deleted for their age",
                    extra={"lane": lane, "events": given_up},
                )
            count += given_up
        return count

    async def _delete(self, lane: int, bound: Position | None, before: datetime) -> int:
        if bound is None or bound.origin.system != self.checkpoints.origin.system:
            return 0
        doomed, pruned = self._doomed(lane, bound, before), 0
        while True:
            async with self.engine.begin() as connection:
                ids = [row[0] for row in await connection.execute(doomed)]
                if ids:
                    await connection.execute(self._remembered(lane, max(ids)))
            pruned += len(ids)
            if len(ids) < AT_ONCE:
                return pruned

    def _doomed(self, lane: int, bound: Position, before: datetime) -> ReturningDelete[Any]:
        rows = self.outbox.table
        seen: ColumnElement[bool]
        if self.engine.dialect.name == "sqlite":
            seen = rows.c.id < end_of(bound.base)
        else:
            visible: Any = text("pg_visible_in_snapshot(xid, cast(:base as pg_snapshot))")
            seen = visible.bindparams(base=str(bound.base.snapshot))
        oldest = (
            select(rows.c.id)
            .where(rows.c.lane == lane, rows.c.id <= bound.head)
            .where(rows.c.created_at < before, seen)
            .order_by(rows.c.id)
            .limit(AT_ONCE)
        )
        doomed = delete(rows).where(rows.c.lane == lane, rows.c.id.in_(oldest))
        return doomed.returning(rows.c.id)

    def _remembered(self, lane: int, highest: int) -> Any:
        """So that a Redis that was restored from before it is noticed."""
        table = self.outbox.tables.checkpoint
        mine = (table.c.lane == lane, table.c.consumer == PUBLISHED)
        before = func.coalesce(table.c.pruned_to, 0)
        return update(table).where(*mine, before < highest).values(pruned_to=highest)
