"""The PostgreSQL source: the difference of two snapshots, in id order.

`id > last` would lose events that commit late; `xid < xmin` would stall behind every long
transaction and invert the order of one key. See docs/discussion/two-snapshots.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import Any

from projector.errors import ProjectorError
from projector.position import Moment, Origin, Position
from projector.snapshot import Snapshot
from projector.source import sql
from projector.source.batch import EVENT_BYTES, EVERY_TOPIC, Batch, Row, Survey, Topics
from projector.source.survey import first_pages

MAX_SPAN = 100_000
"""Ids that one statement looks at, at most. A lane's share of them may be small."""

AHEAD, AHEAD_SPAN, AHEAD_BYTES = 64, 1_000, 16 * 1024
"""Rows that a survey reads per lane at most, the ids it looks at for them, and the bytes of data of
a row: a survey reads for all lanes at once, and must not fill the memory."""
MANY = 1_000
"""Open transactions that a survey asks about at most. With more, each lane looks for itself."""
WINDOW = 5
"""Columns of a window's end."""

FLUSH_AFTER = 0.002
"""Seconds to wait for somebody else's flush before forcing one: the latency of all events while a
large transaction is being written."""
CLOSE_WITHIN = 1.0
"""Seconds for a server that may be gone."""


class InTransaction(ProjectorError):
    """A window must be opened alone in its transaction."""

    def __init__(self) -> None:
        super().__init__("the source's connection is inside a transaction; its windows would lie")


class NotPrimary(ProjectorError):
    """The server is a standby, whose snapshots can miss running transactions."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"the database is a standby ({detail}): point the projector, and any pooler between "
            "them, at the primary"
        )


class TimelineChanged(ProjectorError):
    """Another server than before answers: a standby was promoted."""

    def __init__(self, expected: Origin, found: str) -> None:
        super().__init__(
            f"the database went from timeline {expected.timeline} to {found}: "
            "a standby was promoted"
        )
        self.expected = expected
        self.found = found


class PostgresSource:
    """Reads one outbox on one asyncpg connection, in autocommit; its lanes take turns."""

    def __init__(
        self, connection: Any, log: str, origin: Origin, version: int, largest: int = EVENT_BYTES
    ) -> None:
        self._connection = connection
        self._turn = asyncio.Lock()
        self._spans: dict[int, int] = {}
        self.origin = origin
        self._flush = sql.FLUSH if version >= 170000 else sql.OLD_FLUSH
        self._late = sql.LATE.format(log=log, largest=largest)
        self._fresh = sql.FRESH.format(log=log, largest=largest)
        small = min(largest, AHEAD_BYTES)
        self._survey = sql.SURVEY.format(log=log, largest=small)

    @classmethod
    async def connect(cls, connection: Any, log: str, largest: int = EVENT_BYTES) -> PostgresSource:
        """`connection` is asyncpg's own, given to this source alone; `log` the quoted table. Rows
        with more than `largest` bytes of data are handed over without it."""
        origin = await identify(connection)
        version = int(await connection.fetchval("show server_version_num"))
        # Behind a pooler, the driver knows another process id, and the setting might be left on a
        # connection that others get next.
        if await connection.fetchval("select pg_backend_pid()") == connection.get_server_pid():
            await connection.execute(sql.PLAN_ONCE)
        return cls(connection, log, origin, version, largest)

    async def close(self) -> None:
        """Leave the connection as it was."""
        await self._connection.execute(sql.PLAN_AS_BEFORE, timeout=CLOSE_WITHIN)

    async def look(self) -> Moment:
        """The newest moment that is safe to publish up to: durable, on the known timeline.

        Call it after the positions were read: a moment that is older than a position is refused.
        """
        if self._connection.is_in_transaction():
            raise InTransaction
        async with self._turn:
            return await self._moment((await _fetch(self._connection, sql.WINDOW))[0])

    async def survey(self, positions: Mapping[int, Position], limit: int) -> Survey:
        """A look that reads along: for lanes between windows, the first rows up to the moment.

        In the same statement, since most windows hold a row or two, and asking for them again, lane
        by lane, takes longer than everything else together.
        """
        bases = {position.base for position in positions.values()}
        # Cut before they are made one: fewer than there are would be late rows unread.
        running = list(islice(chain.from_iterable(base.running() for base in bases), MANY + 1))
        if len(running) > MANY:
            return Survey(await self.look(), dict.fromkeys(positions))
        if self._connection.is_in_transaction():
            raise InTransaction
        heads = [position.head for position in positions.values()]
        limit, xids = min(limit, AHEAD), list(map(str, set(running)))
        statement = (self._survey, list(positions), heads, limit, AHEAD_SPAN, xids)
        async with self._turn:
            found = await _fetch(self._connection, *statement)
            if not found[0]["durable"] and found[0]["id"] is None:
                # Somebody is committing just now. What they wrote is there once it is flushed.
                await self._await_flush(found[0]["lsn"])
                found = await _fetch(self._connection, *statement)
            moment = await self._moment(found[0][:WINDOW])
        rows = [tuple(row)[WINDOW:] for row in found if row["id"] is not None]
        opened = {lane: position.opened(moment) for lane, position in positions.items()}
        return Survey(moment, first_pages(rows, opened, limit))

    async def read(
        self, lane: int, position: Position, limit: int, topics: Topics = EVERY_TOPIC
    ) -> Batch:
        """The next events of an open window, and the position behind them.

        Reading twice from one position yields the same events first. The window is closed in the
        returned position when nothing is left in it.
        """
        assert position.upto is not None, "open a window first"
        rows: list[Row] = []
        late = late_xids(position)
        if late and position.after < position.head:
            arguments = (list(map(str, late)), position.head)
            rows = await self._scan(self._late, lane, position.after, limit, topics, *arguments)
        if len(rows) < limit:
            above = max(position.after, position.head)
            upto = str(position.upto.snapshot)
            left = limit - len(rows)
            rows += await self._scan(self._fresh, lane, above, left, topics, upto)
        after = position.advanced(rows[-1].id) if rows else position
        return Batch(rows, after if len(rows) == limit else after.closed())

    async def _scan(
        self, statement: str, lane: int, after: int, limit: int, topics: Topics, *more: Any
    ) -> list[Row]:
        """The next `limit` rows above `after`, stretch by stretch; fewer if there are no more."""
        rows: list[Row] = []
        span = max(self._spans.get(lane, 0), limit)
        while True:
            left = limit - len(rows)
            found = await self._page(statement, lane, after, left, *topics, span, *more)
            _, first, last, *_ = found[0]
            if found[0]["id"] is not None:
                rows += [Row._make(tuple(row)[3:]) for row in found]
            if first is None or len(rows) == limit or first + span > last:
                self._spans[lane] = span
                return rows
            after = first + span - 1
            span = min(span * 2, MAX_SPAN)

    async def _page(self, statement: str, *arguments: Any) -> Any:
        async with self._turn:
            rows = await _fetch(self._connection, statement, *arguments)
        self._check(rows[0][0])
        return rows

    async def _moment(self, window: Sequence[Any]) -> Moment:
        snapshot, next_xid, lsn, timeline, durable = window
        self._check(timeline)
        if not durable:
            await self._await_flush(lsn)
        return Moment(Snapshot.parse(snapshot), next_xid)

    def _check(self, timeline: str) -> None:
        if timeline != self.origin.timeline:
            raise TimelineChanged(self.origin, timeline)

    async def _await_flush(self, lsn: str) -> None:
        """Durable before visible: what is not flushed may be undone by a crash, which then hands
        the same xids out again; a base that counted them as past would hide the new rows."""
        deadline = time.monotonic() + FLUSH_AFTER
        while not await self._connection.fetchval(sql.FLUSHED, lsn):
            if time.monotonic() > deadline:
                await self._connection.execute(self._flush)
                deadline = float("inf")
            await asyncio.sleep(0)


def late_xids(position: Position) -> Sequence[int]:
    """Transactions that ran when the base was taken and are over at the window's end."""
    assert position.upto is not None
    upto = position.upto.snapshot
    return [xid for xid in position.base.running() if upto.sees(xid)]


async def identify(connection: Any) -> Origin:
    """Which cluster and timeline answers; a standby is refused."""
    row = (await _fetch(connection, sql.IDENTITY))[0]
    return Origin(row[0], row[1])


async def _fetch(connection: Any, statement: str, *arguments: Any) -> Any:
    try:
        return await connection.fetch(statement, *arguments)
    except Exception as exc:
        # 55000, "recovery is in progress": from pg_walfile_name and pg_current_wal_insert_lsn.
        if getattr(exc, "sqlstate", None) == "55000" and "recovery" in str(exc):
            raise NotPrimary(str(exc)) from exc
        raise
