"""How an outbox's relay is doing, from the outside: read-only, with a few cheap queries.

Works without a running projector. A server that is away is told, not raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from asyncpg.exceptions import InterfaceError, PostgresError
from redis.exceptions import RedisError
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox import Outbox
from projector.cluster import AnyRedis
from projector.dead.census import Census
from projector.errors import ProjectorError
from projector.lane import LaneState
from projector.origin import OtherDatabase
from projector.paused import Paused
from projector.position import CorruptPosition, Origin
from projector.rejected import Rejected, SetAside
from projector.source.batch import Topics
from projector.status.backlog import Part, part_of
from projector.status.postgres import PostgresReader
from projector.status.reader import Reader
from projector.status.redis import Stock, Stored, count_letters, look_at_streams, take_stock
from projector.status.report import Detached, Holder, Lane, Status, Stream
from projector.status.sqlite import SqliteReader, check_file
from projector.trouble import told

TROUBLE = (
    *(RedisError, PostgresError, InterfaceError, SQLAlchemyError),
    *(OSError, TimeoutError, ProjectorError),
)
LIMIT = timedelta(seconds=3)
"""How long either server may take for all that it is asked."""
PROBED = 64
"""How many lanes are looked for in Redis while the database does not tell."""


async def gather(
    engine: AsyncEngine, redis: AnyRedis, outbox: Outbox, limit: timedelta = LIMIT
) -> Status:
    """One look at everything. Lanes are those of the database, whatever `outbox` says."""
    look = _Look(engine, redis, outbox, limit)
    await look.take()
    return Status(
        name=outbox.name,
        at=datetime.now(UTC),
        database_problem=look.database_problem,
        redis_problem=look.redis_problem,
        projectors=look.stock.projectors if look.stock else (),
        lanes=tuple(look.lanes),
        streams=look.streams,
        horizon=look.horizon,
        rejected=look.rejected,
        paused=look.paused,
        letters=look.letters,
    )


@dataclass(slots=True)
class _Look:
    engine: AsyncEngine
    redis: AnyRedis
    outbox: Outbox
    limit: timedelta
    database_problem: str | None = None
    redis_problem: str | None = None
    stock: Stock | None = None
    lanes: list[Lane] = field(default_factory=list)
    streams: tuple[Stream, ...] = ()
    horizon: tuple[Holder, ...] = ()
    rejected: tuple[SetAside, ...] = ()
    paused: tuple[str, ...] = ()
    letters: tuple[Census, ...] = ()

    async def take(self) -> None:
        """The lanes from the database, their positions from Redis, then what lies behind them."""
        try:
            async with self._reader() as reader:
                await self._ask_redis(range(await reader.lanes(self.outbox.name)))
                self.horizon = await reader.horizon()
                origin = await self._origin(reader)
                await self._ask_for_backlogs(reader, origin)
            await self._ask_for_the_rest()
        except TROUBLE as exc:
            self.database_problem = self._told(exc)
            if self.stock is None and self.redis_problem is None:
                await self._ask_redis(range(0))

    async def _ask_redis(self, lanes: range) -> None:
        self.lanes = [Lane(lane) for lane in lanes]
        try:
            async with asyncio.timeout(self.limit.total_seconds()):
                stock = await take_stock(self.redis, self.outbox.name, lanes or range(PROBED))
                if not lanes:
                    known = {lane: stored for lane, stored in stock.lanes.items() if stored}
                    stock = replace(stock, lanes=known)
                self.stock = stock
                self.lanes = [_held(lane, stored) for lane, stored in stock.lanes.items()]
                self.redis_problem = self._told(stock.problem) if stock.problem else None
                self.streams = await look_at_streams(self.redis, stock)
                self.letters = await count_letters(self.redis, self.outbox.name, self.streams)
        except TROUBLE as exc:
            self.redis_problem = self._told(exc)

    async def _origin(self, reader: Reader) -> Origin | None:
        try:
            return await reader.origin()
        except TROUBLE as exc:  # a standby, or no right to ask: the rest can still be told
            self.database_problem = self._told(exc)
            return None

    async def _ask_for_backlogs(self, reader: Reader, origin: Origin | None) -> None:
        if self.stock is None:
            return
        states = [_state(lane, self.stock.lanes[lane.lane].state, origin) for lane in self.lanes]
        told = [(lane, state) for lane, state in states if lane.problem is None]
        parts = [part for lane, state in told for part in _parts(lane.lane, state)]
        answers = iter(await reader.backlogs(parts))
        found = {}
        for lane, state in told:
            backlog, age = next(answers)
            topics = state.detached if state else ()
            detached = tuple(Detached(topic, *next(answers)) for topic in topics)
            found[lane.lane] = replace(lane, backlog=backlog, position_age=age, detached=detached)
        self.lanes = [found.get(lane.lane, lane) for lane, _ in states]

    async def _ask_for_the_rest(self) -> None:
        tables = self.outbox.tables
        async with asyncio.timeout(self.limit.total_seconds()):
            self.rejected = tuple(await Rejected(self.engine, tables).newest())
            self.paused = tuple(sorted(await Paused(self.engine, tables).topics()))

    @asynccontextmanager
    async def _reader(self) -> AsyncIterator[Reader]:
        dialect, tables = self.engine.dialect, self.outbox.tables
        if dialect.name == "sqlite":
            check_file(self.engine.url)
        async with asyncio.timeout(self.limit.total_seconds()):
            connection = await self.engine.connect()
        try:
            if dialect.name == "sqlite":
                yield SqliteReader(connection, tables)
                return
            raw: Any = (await connection.get_raw_connection()).driver_connection
            table = dialect.identifier_preparer.format_table
            with self._watched(raw):
                yield PostgresReader(raw, table(tables.log), table(tables.meta), self.limit)
        finally:
            await connection.close()

    @contextmanager
    def _watched(self, raw: Any) -> Iterator[None]:
        """Ends a connection that takes too long, also while Redis is asked. Not by a timeout():
        asyncpg would wait for a silent server to agree to a cancel."""
        last = 2 * self.limit.total_seconds()
        watchdog = asyncio.get_running_loop().call_later(last, raw.terminate)
        try:
            yield
        finally:
            watchdog.cancel()

    def _told(self, problem: BaseException) -> str:
        if isinstance(problem, ProjectorError):
            return str(problem)
        if isinstance(problem, TimeoutError) and not str(problem):
            return f"no answer within {self.limit.total_seconds():g} s"
        return told(problem)


def _held(lane: int, stored: Stored) -> Lane:
    return Lane(
        lane,
        stored.holder,
        stored.lease_left,
        published=bool(stored.state),
        problem=told(stored.problem) if stored.problem else None,
    )


def _state(lane: Lane, text: str, origin: Origin | None) -> tuple[Lane, LaneState | None]:
    """What the stored text means on this database, or a problem on the lane."""
    if not text:
        return lane, None
    try:
        state = LaneState.parse(text)
    except CorruptPosition as exc:
        return replace(lane, problem=str(exc)), None
    if origin and origin.system != state.main.origin.system:
        problem = str(OtherDatabase(lane.lane, state.main.origin, origin))
        return replace(lane, problem=problem), None
    return lane, state


def _parts(lane: int, state: LaneState | None) -> Iterable[Part]:
    """The lane's own, then one for each detached topic, in the order they are kept."""
    if state is None:
        yield part_of(lane, None, Topics())
        return
    yield part_of(lane, state.main, Topics(without=tuple(state.detached)))
    for topic, position in state.detached.items():
        yield part_of(lane, position, Topics(only=topic))
