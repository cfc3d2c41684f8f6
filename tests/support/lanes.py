"""A relay on real servers, driven by hand: what the tests of the algorithm have in common."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import asyncpg
from sqlalchemy import create_engine, make_url

from outbox import Outbox
from outbox.keys import lane_of
from projector import keys
from projector.connect import redis_of
from projector.lane import LaneState
from projector.origin import OtherDatabase, start
from projector.position import Origin, Position
from projector.relay import Relay
from projector.sink.redis import RedisSink
from projector.source.postgres import PostgresSource
from projector.topology import Topic

INSERT = """
insert into outbox (lane, event_id, topic, type, key, seq, data, content_type)
select $1, gen_random_uuid(), $2, 'changed', $3, $4, '{}', 'application/json'
"""


@dataclass(frozen=True, slots=True)
class FromTheStart:
    """Resumes a forgotten lane or topic before everything that is retained: nothing is lost, and
    consumers dedup what they have seen."""

    origin: Origin

    async def lane(self, _: int) -> Position:
        return start(self.origin)

    async def topic(self, _: int, __: str) -> Position:
        return start(self.origin)

    async def fit(self, lane: int, state: LaneState) -> LaneState:
        stored = state.main.origin
        if stored == self.origin:
            return state
        if stored.system != self.origin.system:
            raise OtherDatabase(lane, stored, self.origin)
        # A promotion: commits that the old primary had and this one has not may have given their
        # ids and xids to others.
        return LaneState(start(self.origin))

    async def fell_back(self, lane: int, before: Position | None, now: Position) -> int:
        return 0


class NothingRejected:
    async def set_aside(self, lane: int, causes: Mapping[int, str]) -> None:
        raise AssertionError(f"rows of lane {lane} were set aside: {causes}")


def client(url: str) -> Any:
    return redis_of(url)


async def _connected(url: str, seconds: float = 20) -> Any:
    """A server that is just recovering is waited for."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await asyncpg.connect(url)
        except asyncpg.CannotConnectNowError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)


class Pipeline:
    """An outbox in an empty database, a source, a sink, and relays made when asked for."""

    def __init__(self, database: str, redis_url: str, lanes: int = 1) -> None:
        self.database = make_url(database)
        self.redis = client(redis_url)
        self.name = f"t{uuid4().hex[:10]}"
        self.outbox = Outbox(name=self.name, lanes=lanes)
        self.topology: dict[str, Topic] = {}
        self._opened: list[Any] = []

    async def start(self) -> None:
        await asyncio.to_thread(self._create)  # the way there may lead through a proxy of ours
        await self.reconnect()

    def _create(self) -> None:
        sync = create_engine(self.database.set(drivername="postgresql+psycopg"))
        self.outbox.metadata.create_all(sync)
        sync.dispose()

    async def reconnect(self, kind: type[PostgresSource] = PostgresSource) -> None:
        """A new source, as after an outage. Relays made before keep the old one."""
        self.source = await kind.connect(await self.connect(), "outbox")

    async def connect(self) -> Any:
        """Closed with the pipeline, if not before."""
        url = self.database.set(drivername="postgresql").render_as_string(hide_password=False)
        connection = await _connected(url)
        self._opened.append(connection)
        return connection

    async def begin(self) -> Any:
        """An open transaction that has its xid, and has written nothing."""
        connection = await self.connect()
        await connection.execute("begin; select pg_current_xact_id()")
        return connection

    def relay(self, lane: int = 0, **options: Any) -> Relay:
        sink = RedisSink(self.redis, self.name, self.topology)
        resume = FromTheStart(self.source.origin)
        return Relay(lane, self.source, sink, resume, NothingRejected(), **options)

    async def loaded(self, lane: int = 0, **options: Any) -> Relay:
        relay = self.relay(lane, **options)
        await relay.load()
        return relay

    async def write(self, connection: Any, key: str, seq: int, topic: str = "t") -> None:
        lane = lane_of(key, self.outbox.lanes)
        await connection.execute(INSERT, lane, topic, key, seq)

    async def turn(self, relay: Relay) -> int:
        """One survey and one advance, as the daemon does it."""
        at = relay.state.main
        between = {} if at.upto else {relay.lane: at}
        survey = await self.source.survey(between, relay._batch)
        if between and relay.lane not in survey.lanes:
            relay.skip(survey.moment, at)
        return await relay.advance(survey.moment, survey.lanes.get(relay.lane))

    async def seqs(self, topic: str = "t") -> dict[str, list[int]]:
        """What the streams hold: per key, the numbers in order."""
        found: dict[str, list[int]] = defaultdict(list)
        for lane in range(self.outbox.lanes):
            for _, entry in await self.redis.xrange(keys.stream(self.name, lane, topic)):
                found[entry[b"subject"].decode()].append(int(entry[b"sequence"]))
        return dict(found)

    async def settle(self, relay: Relay) -> None:
        """Turns until nothing moves: the lane, then the topics that were detached from it."""
        before = None
        while before != (before := str(relay.state)):
            await self.turn(relay)
            for topic in tuple(relay.state.detached):
                await relay.follow(topic)

    async def close(self) -> None:
        for connection in self._opened:
            if not connection.is_closed():
                connection.terminate()  # whatever state it or its server is in
        await self.redis.aclose()


@asynccontextmanager
async def pipeline(database: str, redis_url: str, lanes: int = 1) -> AsyncIterator[Pipeline]:
    made = Pipeline(database, redis_url, lanes)
    await made.start()
    try:
        yield made
    finally:
        await made.close()
