"""The SQLite source. One writer at a time, so id order is commit order and a moment is an id.

It shares PostgreSQL's positions by taking ids for transaction ids: a moment sees every id below
its xmax, nothing runs, and so nothing is ever late.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Select, Table, bindparam, column, select, table
from sqlalchemy.ext.asyncio import AsyncConnection

from projector.position import Moment, Origin, Position
from projector.snapshot import FIRST_XID, Snapshot
from projector.source.batch import EVERY_TOPIC, Batch, Row, Topics

ORIGIN = Origin("sqlite", "0")


class SqliteSource:
    """Reads one outbox on one connection."""

    origin = ORIGIN

    def __init__(self, connection: AsyncConnection, log: Table) -> None:
        self._connection = connection
        self._log = log

    async def look(self) -> Moment:
        """Everything that is committed. The counter and not max(id), which pruning could lower."""
        counter = table("sqlite_sequence", column("name"), column("seq"))
        statement = select(counter.c.seq).where(counter.c.name == self._log.name)
        last = (await self._fetch(statement)) or [(0,)]
        xmax = max(last[0][0] + 1, FIRST_XID)
        return Moment(Snapshot(xmax, xmax), xmax)

    async def waiting(self, _: Moment, positions: Mapping[int, Position]) -> set[int]:
        lowest = min(position.head for position in positions.values())
        lanes = select(self._log.c.lane).where(self._log.c.id > lowest).distinct()
        return {row[0] for row in await self._fetch(lanes)} & positions.keys()

    async def read(
        self, lane: int, position: Position, limit: int, topics: Topics = EVERY_TOPIC
    ) -> Batch:
        assert position.upto is not None, "open a window first"
        above, below = max(position.after, position.head), position.upto.snapshot.xmax
        arguments = {"lane": lane, "above": above, "below": below, "count": limit}
        found = await self._fetch(self._page(topics), arguments)
        rows = [_row(row) for row in found]
        after = position.advanced(rows[-1].id) if rows else position
        return Batch(rows, after if len(rows) == limit else after.closed())

    def _page(self, topics: Topics) -> Select[Any]:
        log = self._log.c
        columns = [log[{"time": "created_at"}.get(name, name)] for name in Row._fields]
        page = select(*columns).where(log.lane == bindparam("lane"))
        page = page.where(log.id > bindparam("above"), log.id < bindparam("below"))
        if topics.only is not None:
            page = page.where(log.topic == topics.only)
        if topics.without:
            page = page.where(log.topic.not_in(topics.without))
        return page.order_by(log.id).limit(bindparam("count"))

    async def _fetch(
        self, statement: Select[Any], arguments: dict[str, int] | None = None
    ) -> list[Any]:
        rows = list((await self._connection.execute(statement, arguments or {})).all())
        await self._connection.rollback()  # else the next read would see this one's snapshot
        return rows


def _row(found: Any) -> Row:
    row = Row(*found)
    moment: datetime = found.created_at.replace(tzinfo=UTC)
    stamp = moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return row._replace(event_id=str(row.event_id), time=stamp)
