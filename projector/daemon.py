"""The projector: relays the lanes it holds, shares them with others, and waits outages out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

from asyncpg.exceptions import InterfaceError, PostgresError
from redis.exceptions import RedisError
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine
from tenacity import AsyncRetrying, retry_if_exception_type

from outbox import Outbox, fields
from outbox.ending import end
from outbox.errors import InvalidField
from projector import keys, trouble
from projector.checkpoint import Checkpoints
from projector.cluster import AnyRedis
from projector.dead.letters import REMEMBERED, DeadLetters
from projector.errors import ProjectorError
from projector.hint import Hint
from projector.janitor import Janitor
from projector.janitor.prune import Pruner
from projector.lane import LaneState
from projector.lease import Leases, fair_share
from projector.origin import start
from projector.pace import Pace
from projector.paused import Paused
from projector.position import Moment, StaleSnapshot
from projector.rejected import Rejected
from projector.relay import Relay
from projector.setback import WAIT, Doing, Setbacks
from projector.settings import Settings, duration
from projector.sink.outcome import Moved
from projector.sink.redis import RedisSink
from projector.source.batch import Ahead
from projector.source.postgres import NotPrimary, PostgresSource, TimelineChanged
from projector.source.sqlite import SqliteSource
from projector.telemetry import Telemetry
from projector.topology import with_groups
from projector.working import LONG, Working

log = logging.getLogger("projector")

T = TypeVar("T")

AnySource = PostgresSource | SqliteSource

OUTAGE = (
    *(RedisError, PostgresError, InterfaceError, DBAPIError, OSError, TimeoutError),
    *(NotPrimary, TimelineChanged, StaleSnapshot),
)
"""What time heals: servers that are away, loading, failing over, full or read-only."""


LANES = 8
"""Where neither the database nor the settings say how many."""
FIRST_LANE = 0
DUE_EVERY = 1.0
"""Seconds between two looks for delayed events."""


class Projector:
    """Relays one outbox. `run()` until `stop()`; `drain()` publishes what is there and returns.

    `redis` must not retry by itself (`Retry(NoBackoff(), 0)`): the compare decides what to repeat.
    `redis_of(url)` makes such a client, and the only one for a cluster.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        redis: AnyRedis,
        settings: Settings,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.settings = settings
        self.telemetry = telemetry or Telemetry()
        self._engine = engine
        self._leases = Leases(redis, settings.name, duration(settings.lease))
        self._sink = RedisSink(redis, settings.name, settings.topology)
        self._outbox = self._outbox_of(settings.lanes or LANES)
        self._paused = Paused(engine, self._outbox.tables)
        self.rejected = Rejected(engine, self._outbox.tables)
        self._hint = Hint(engine, self._outbox.channel)
        self._relays: dict[int, Relay] = {}
        self._asked: set[int] = set()
        """Lanes whose lease may be ours."""
        self._working = Working()
        self._setbacks = Setbacks(self.telemetry)
        self._members = 1
        self._uncounted = False
        self._stopping = asyncio.Event()
        self._turned = False

    def _outbox_of(self, lanes: int) -> Outbox:
        where = self.settings
        return Outbox(name=where.name, lanes=lanes, schema=where.schema, prefix=where.prefix)

    def stop(self) -> None:
        """Finish the batch, release the lanes, and return from run(). Safe in a signal handler."""
        self._stopping.set()
        self._hint.give()

    async def run(self) -> None:
        """Relay until `stop()` is called. Whatever time heals is waited out."""
        while not self._stopping.is_set():
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(OUTAGE),
                wait=WAIT,
                sleep=self._pause,
                stop=lambda _: self._stopping.is_set(),
            ):
                with attempt:
                    await self._serve()

    async def drain(self) -> int:
        """Publish everything that is committed now, on every lane that is free. How many events."""
        async with self._source() as source:
            await self._share(source)
            count = 0
            try:
                moment = await source.look()
                for relay in self._relays.values():
                    while relay.state.main.base != moment:
                        count += await relay.advance(moment)
                self._setbacks.check()
            finally:
                await self._leave()
            return count

    async def rebase(self) -> int:
        """Let every lane start over on the database that answers now: all that is retained is
        published again, nothing is skipped. How many lanes. A running projector follows by itself,
        or takes up lanes that stood still."""
        async with self._source() as source:
            lanes = await self._lanes()
            for lane in lanes:
                anew = str(LaneState(start(source.origin)))
                stored = await self._sink.state(lane)
                while isinstance(now := await self._sink.publish(lane, stored, anew, []), Moved):
                    stored = now.stored
            return len(lanes)

    async def drop_group(self, group: str, *, force: bool = False) -> int:
        """Retire a consumer group: nothing waits for it any more. How many streams had it. Raises
        GroupHasLetters if it has dead letters, unless they are to go with it by `force`."""
        async with self._source() as source:
            try:
                letters = await self.dead(group)
            except InvalidField:
                letters = None  # no consumer of ours has such a name
            if letters and not force:
                await letters.refuse_any()
            checkpoints = self._checkpoints(source)
            topics = [
                topic for topic, names in (await checkpoints.groups()).items() if group in names
            ]
            dropped = 0
            for lane in await self._lanes():
                for topic in topics:
                    dropped += await self._sink.drop_group(lane, topic, group)
            await checkpoints.drop_group(group)
            if letters:
                await letters.drop()
            return dropped

    async def dead(self, group: str) -> DeadLetters:
        """The dead letters of a group of our consumers."""
        fields.name("group", group)
        await self._meet()
        redis, name = self._leases.redis, self.settings.name
        retention: Any = await redis.hget(keys.meta(name), "retention")
        remembered = max(REMEMBERED, timedelta(seconds=int(retention or 0)))
        return DeadLetters(redis, name, await self._lanes(), group, remembered)

    async def groups(self) -> dict[str, set[str]]:
        """The consumer groups that are known, by topic."""
        async with self._source() as source:
            return await self._checkpoints(source).groups()

    async def pause(self, topic: str) -> None:
        """Hold a topic back: its events stay in the database, and the other topics go on."""
        async with self._source():
            await self._paused.pause(topic)

    async def resume(self, topic: str) -> bool:
        """Let a paused topic go on where it stood. Whether it was paused."""
        async with self._source():
            return await self._paused.resume(topic)

    async def _serve(self) -> None:
        """Until stop(), or until something goes wrong. Trouble after a good turn ends the call and
        not the attempt, so that each outage starts with the shortest back-off."""
        self._turned = False
        try:
            async with self._source() as source:
                chores: list[asyncio.Task[None]] = []
                try:
                    await self._share(source)
                    chores.append(asyncio.create_task(self._keep_sharing(source)))
                    chores.append(asyncio.create_task(self._keep_house(source)))
                    if self.settings.notify and self._engine.dialect.name == "postgresql":
                        chores.append(asyncio.create_task(self._hint.listen()))
                    await self._turns(source, chores)
                finally:
                    await end(*chores)
                    await self._working.finish()
                    await self._leave()
        except OUTAGE as problem:
            self._setbacks.keep(())  # the outage says it all
            if self.telemetry.outage(trouble.reason(problem), trouble.told(problem)):
                log.warning("waiting out an outage: %s", trouble.told(problem))
            if not self._turned:
                raise

    async def _turns(self, source: AnySource, chores: Sequence[asyncio.Task[None]]) -> None:
        intervals = (self.settings.poll_busy, self.settings.poll_idle, self.settings.poll_linger)
        pace = Pace(*(duration(interval).total_seconds() for interval in intervals))
        while not self._stopping.is_set():
            for chore in chores:
                if chore.done():
                    chore.result()
            published = await self._turn(source)
            self.telemetry.recovered()
            self._turned = True
            await self._hint.wait(pace.wait(published, time.monotonic()))

    async def _turn(self, source: AnySource) -> int:
        """One look for all lanes, then each lane that has something gets on, side by side."""
        relays = {
            lane: relay
            for lane, relay in self._relays.items()
            if lane not in self._working and not self._setbacks.waiting("publish", lane)
        }
        between = {n: relay.state.main for n, relay in relays.items() if not relay.state.main.upto}
        survey = await source.survey(between, self.settings.batch)
        self.telemetry.looked()
        moment, lanes = survey.moment, survey.lanes
        for lane in between.keys() - lanes.keys():
            relays[lane].skip(moment, between[lane])
        behind = [r for r in relays.values() if r.state.main.base != moment or r.state.detached]
        await self._working.begin(
            {relay.lane: self._advance(relay, moment, lanes.get(relay.lane)) for relay in behind}
        )
        counts, failed = self._working.collect()
        for lane in counts:
            self._setbacks.over("publish", lane)
        if failed:
            await self._set_back("publish", failed)
        return sum(counts.values())

    async def _set_back(self, doing: Doing, failed: Mapping[int, RedisError]) -> None:
        """Trouble is a lane's own while Redis still takes leases, be it of others; else it is an
        outage."""
        failed = {lane: problem for lane, problem in failed.items() if lane in self._relays}
        if failed and not any(await _all(map(self._answers, list(self._relays)))):
            raise next(iter(failed.values()))
        self._setbacks.add(doing, failed)

    async def _answers(self, lane: int) -> bool:
        try:
            async with asyncio.timeout(LONG):
                await self._leases.hold(lane)
        except (RedisError, TimeoutError):
            return False
        return True

    async def _advance(self, relay: Relay, moment: Moment, ahead: Ahead | None) -> int:
        waiting = [topic for topic in relay.state.detached if relay.due(topic)]
        count = await relay.advance(moment, ahead) if relay.state.main.base != moment else 0
        for topic in waiting:
            if topic in relay.state.detached:
                count += await relay.follow(topic)
        return count

    async def _keep_sharing(self, source: AnySource) -> None:
        while True:
            await asyncio.sleep(duration(self.settings.lease).total_seconds() / 3)
            await self._share(source)

    async def _keep_house(self, source: AnySource) -> None:
        """Due events every second, by whoever holds the first lane; checkpoints, pruning and the
        care of the streams now and then, lane by lane."""
        checkpoints = self._checkpoints(source)
        janitor = Janitor(
            self._engine,
            self._leases.redis,
            self._outbox,
            checkpoints,
            self.settings.topology,
            self.telemetry,
            trim=self.settings.trim,
            pending_idle=duration(self.settings.pending_idle),
            consumer_idle=duration(self.settings.consumer_idle),
        )
        longest = self.settings.keep_at_most
        pruner = Pruner(
            self._engine,
            self._outbox,
            checkpoints,
            retention=duration(self.settings.retention),
            keep_at_most=None if longest is None else duration(longest),
        )
        every = duration(self.settings.checkpoint).total_seconds()
        checkpoint_at = time.monotonic() + every
        while True:
            if FIRST_LANE in self._relays and await janitor.move_due():
                log.info("delayed events became due")
            if time.monotonic() >= checkpoint_at:
                for lane, relay in list(self._relays.items()):
                    await self._checkpoint(janitor, relay)
                    await pruner.prune(lane)
                checkpoint_at = time.monotonic() + every
            await asyncio.sleep(min(DUE_EVERY, every))

    async def _share(self, source: AnySource) -> None:
        """Renew our lanes, give up what is more than our share, take what is free."""
        lanes = await self._lanes()
        await self._learn(source)
        uncounted = await self._join(len(lanes))
        share = fair_share(len(lanes), self._members)
        ours = [lane for lane in lanes if lane in self._relays]
        free = [lane for lane in lanes if lane not in self._relays]
        for lane in ours[share:]:
            del self._relays[lane]
            with suppress(RedisError):
                await self._leases.release(lane)
        tried = ours[:share]
        failed = await self._hold_all(tried, source)
        while free and len(self._relays) < share:
            wanted = share - len(self._relays)
            some, free = free[:wanted], free[wanted:]
            failed |= await self._hold_all(some, source)
            tried += some
        if failed and len(failed) == len(tried):
            raise failed[tried[0]]
        if uncounted and not self._uncounted:
            log.warning("the projectors cannot be counted: %s", trouble.told(uncounted))
        self._uncounted = uncounted is not None
        self._setbacks.add("hold", failed)
        self._setbacks.keep(tried)
        self.telemetry.holds(self._relays)

    async def _learn(self, source: AnySource) -> None:
        """What others may have changed: groups and paused topics."""
        checkpoints = self._checkpoints(source)
        declared = self.settings.topology
        for topic, kept in declared.items():
            await checkpoints.register(topic, set(kept.groups))
        self._sink.topology = with_groups(declared, await checkpoints.groups())
        paused = await self._paused.topics()
        for relay in self._relays.values():
            relay.paused = paused

    def _checkpoints(self, source: AnySource) -> Checkpoints:
        return Checkpoints(self._engine, self._outbox.tables, source.origin)

    async def _meet(self) -> None:
        """The number of lanes has one home, the database. What the settings say counts where it
        says nothing yet, and must not differ from it."""
        async with self._engine.connect() as connection:
            stored = await connection.run_sync(self._outbox.read_meta)
        if stored is not None and self.settings.lanes is None:
            self._outbox = self._outbox_of(stored[1])

    async def _join(self, lanes: int) -> RedisError | None:
        """Count the projectors, and tell consumers what they need to know, which an emptied Redis
        forgets. If the servers of those keys are away, as many projectors as before are taken to
        live: lanes of other servers go on."""
        try:
            await self._sink.tell(lanes, duration(self.settings.retention))
            self._members = await self._leases.join()
        except RedisError as problem:
            return problem
        return None

    async def _hold_all(self, lanes: Iterable[int], source: AnySource) -> dict[int, RedisError]:
        """Side by side, since one server may take its time. Those that failed."""
        failed: dict[int, RedisError] = {}

        async def hold(lane: int) -> None:
            try:
                await self._hold(lane, source)
                self._setbacks.over("hold", lane)
            except RedisError as problem:
                failed[lane] = problem

        await _all(map(hold, lanes))
        return failed

    async def _lanes(self) -> range:
        """As many as the database says; and, should rows lie in others, those too."""
        highest = select(func.max(self._outbox.table.c.lane))
        async with self._engine.begin() as connection:
            await connection.run_sync(self._outbox.meet)
            stray = (await connection.execute(highest)).scalar_one_or_none()
        if stray is not None and stray >= self._outbox.lanes:
            log.error("rows in lanes above the count are relayed too", extra={"lane": stray})
        return range(max(self._outbox.lanes, (stray or 0) + 1))

    async def _hold(self, lane: int, source: AnySource) -> None:
        self._asked.add(lane)
        stored = await self._leases.hold(lane)
        if stored is None:
            if self._relays.pop(lane, None):
                log.warning("lost the lease of a lane", extra={"lane": lane})
            self.telemetry.fine(lane)
            return
        relay = self._relays.get(lane)
        if relay is None:
            relay = Relay(
                lane,
                source,
                self._sink,
                self._checkpoints(source),
                self.rejected,
                batch=self.settings.batch,
                batch_bytes=self.settings.batch_bytes,
                telemetry=self.telemetry,
            )
            try:
                await self._sink.create_groups(lane)
                await relay.load()
            except ProjectorError as problem:
                # Time does not heal this. Other lanes go on; the lane is tried again in a while.
                if self.telemetry.problem(lane, str(problem)):
                    log.error("a lane stands still: %s", problem, extra={"lane": lane})
                return
            self.telemetry.fine(lane)
            relay.paused = await self._paused.topics()
            self._relays[lane] = relay

    async def _checkpoint(self, janitor: Janitor, relay: Relay) -> None:
        if self._setbacks.waiting("checkpoint", relay.lane):
            return
        try:
            await janitor.checkpoint(relay)
            await janitor.tend(relay.lane)
            self._setbacks.over("checkpoint", relay.lane)
        except RedisError as problem:
            await self._set_back("checkpoint", {relay.lane: problem})

    async def _leave(self) -> None:
        """Give back what can be given back; the rest ends with its lease."""
        held, self._asked = self._asked, set()  # also lanes whose relay was still loading
        self._relays.clear()
        self.telemetry.holds(())
        released = (self._leases.release(lane) for lane in held)
        await asyncio.gather(*released, self._leases.leave(), return_exceptions=True)

    @asynccontextmanager
    async def _source(self) -> AsyncIterator[AnySource]:
        """A connection of its own, and with asyncpg a raw one: SQLAlchemy's rows cost several
        times as much."""
        await self._meet()
        dialect, table = self._engine.dialect, self._outbox.table
        largest = self.settings.event_bytes
        async with self._engine.connect() as connection:
            if dialect.name == "sqlite":
                yield SqliteSource(connection, table, largest)
                return
            raw: Any = (await connection.get_raw_connection()).driver_connection
            quoted = dialect.identifier_preparer.format_table(table)
            source = await PostgresSource.connect(raw, quoted, largest)
            try:
                yield source
            finally:
                with suppress(*OUTAGE):
                    await source.close()

    async def _pause(self, seconds: float) -> None:
        """A sleep that stop() ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()


async def _all(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    """Each to its end; then the first error, if any."""
    results = []
    for result in await asyncio.gather(*awaitables, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results
