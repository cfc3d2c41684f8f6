"""The SQLite source. One writer at a time, so id order is commit order and a moment is an id.

It shares PostgreSQL's positions by taking ids for transaction ids, counted from the first one that
PostgreSQL gives out: else the first rows would lie before the beginning. Nothing runs in a moment,
and so nothing is ever late.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Select, Table, bindparam, case, column, func, select, table
from sqlalchemy.ext.asyncio import AsyncConnection

from projector.position import Moment, Origin, Position
from projector.snapshot import FIRST_XID, Snapshot
from projector.source.batch import EVENT_BYTES, EVERY_TOPIC, Batch, Row, Survey, Topics

ORIGIN = Origin("sqlite", "0")


class SqliteSource:
    """Reads one outbox on one connection."""

    origin = ORIGIN

    def __init__(self, connection: AsyncConnection, log: Table, largest: int = EVENT_BYTES) -> None:
        self._connection = connection
        self._log = log
        self._largest = largest

    async def look(self) -> Moment:
        """Everything that is committed. The counter and not max(id), which pruning could lower."""
        counter = table("sqlite_sequence", column("name"), column("seq"))
        statement = select(counter.c.seq).where(counter.c.name == self._log.name)
        last = (await self._fetch(statement)) or [(0,)]
        xmax = FIRST_XID + last[0][0] + 1
        return Moment(Snapshot(xmax, xmax), xmax)

    async def survey(self, positions: Mapping[int, Position], _: int) -> Survey:
        """A look, and which lanes between windows have something to publish."""
        moment = await self.look()
        if all(position.base == moment for position in positions.values()):
            return Survey(moment, {})
        lowest = min(position.head for position in positions.values())
        lanes = select(self._log.c.lane).where(self._log.c.id > lowest).distinct()
        found = {row[0] for row in await self._fetch(lanes)}
        return Survey(moment, dict.fromkeys(found & positions.keys()))

    async def read(
        self, lane: int, position: Position, limit: int, topics: Topics = EVERY_TOPIC
    ) -> Batch:
        assert position.upto is not None, "open a window first"
        above, below = position.published_to, end_of(position.upto)
        arguments = {"lane": lane, "above": above, "below": below, "count": limit}
        found = await self._fetch(self._page(topics), arguments)
        rows = [_row(row) for row in found]
        after = position.advanced(rows[-1].id) if rows else position
        return Batch(rows, after if len(rows) == limit else after.closed())

    def _page(self, topics: Topics) -> Select[Any]:
        log = self._log.c
        texts = log.key + log.type + func.coalesce(log.headers, "")
        fits = func.length(log.data) + func.length(texts) <= self._largest
        data = case((fits, log.data)).label("data")
        special: dict[str, Any] = {"time": log.created_at, "data": data}
        columns = [special[name] if name in special else log[name] for name in Row._fields]
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


def end_of(moment: Moment) -> int:
    """The first id that the moment does not see."""
    return moment.snapshot.xmax - FIRST_XID


def _row(found: Any) -> Row:
    row = Row(*found)
    moment: datetime = found.created_at.replace(tzinfo=UTC)
    stamp = moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return row._replace(event_id=str(row.event_id), time=stamp)
