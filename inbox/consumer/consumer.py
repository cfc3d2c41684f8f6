"""`Consumer`: handlers of one group, over the lanes of one outbox."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal, TypeVar

from redis.asyncio import Redis
from redis.asyncio.retry import Retry as RedisRetry
from redis.backoff import NoBackoff
from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from inbox.claims.key import Seconds, seconds
from inbox.consumer.handlers import Handlers, handler_of
from inbox.consumer.lane import BLOCK, OUTAGE, Lane
from inbox.consumer.ledger import OWNER, Ledger
from inbox.consumer.policy import Inbox, Policy
from inbox.consumer.retry import Retry
from inbox.consumer.work import Pool
from inbox.errors import BadHandler, NoProjector, WindowTooShort
from inbox.metrics import METRICS, Metrics
from outbox import fields, layout, script
from outbox.ending import end
from outbox.script import load

log = logging.getLogger("inbox.consumer")

FIRST_LANE = 0
PURGE_EVERY = timedelta(minutes=10)

F = TypeVar("F", bound=Callable[..., Any])


class Consumer:
    """Lets each event of some topics have one effect.

    Ordered, the default: the processes of a group share the lanes, and the events of one key are
    handled one after another, in order. Unordered: all compete for all entries.

    group          the consumer group: each group gets every event
    inbox          `RedisInbox` or `SqlInbox`
    concurrency    how many handlers run at once in this process
    batch          how many entries are read at once
    retry          how often, and how soon, a handler that failed is tried again
    on_dead        an event that is given up parks its key (`park`), or not (`skip`)
    on_unknown     a type that nobody handles is a dead letter (`dead`), or let go (`skip`)
    dedup          `id` remembers each event; `seq` only the last one of each key, for topics whose
                   events are all numbered without holes (`seq=AUTO`)
    lane_lease     how long a lane stays with a process that has died
    claim_lease    how long an event stays with a process that has died
    pending_idle   unordered: after how long an entry of another process is taken over
    stop_timeout   how long `stop` waits for handlers that run
    lanes          how many the outbox has, if no projector has told Redis yet
    """

    def __init__(
        self,
        redis: Redis,
        name: str,
        *,
        group: str,
        inbox: Inbox,
        ordered: bool = True,
        concurrency: int = 64,
        batch: int = 500,
        retry: Retry | None = None,
        on_dead: Literal["park", "skip"] = "park",
        on_unknown: Literal["dead", "skip"] = "dead",
        dedup: Literal["id", "seq"] = "id",
        lane_lease: Seconds = 10,
        claim_lease: Seconds = 60,
        pending_idle: Seconds = 300,
        stop_timeout: Seconds = 25,
        lanes: int | None = None,
        metrics: Metrics = METRICS,
    ) -> None:
        self.name = fields.name("name", name)
        self.group = fields.name("group", group)
        self._handlers = Handlers()
        self._policy = Policy(
            inbox=inbox,
            handlers=self._handlers,
            group=group,
            ordered=ordered,
            batch=batch,
            retry=retry or Retry(),
            on_dead=on_dead,
            on_unknown=on_unknown,
            claim_lease=_duration("claim_lease", claim_lease),
            pending_idle=_duration("pending_idle", pending_idle),
            metrics=metrics,
        )
        if dedup == "seq" and not ordered:
            raise ValueError('dedup="seq" needs ordered=True')
        self._by_seq = dedup == "seq"
        self._concurrency = concurrency
        self._lane_lease = _duration("lane_lease", lane_lease)
        self._stop_timeout = _duration("stop_timeout", stop_timeout)
        self._lanes = lanes
        self._redis = _client(redis, socket_timeout=10)
        self._waiting = _client(redis, socket_timeout=BLOCK.total_seconds() + 10)
        self.token = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._held: dict[int, Lane] = {}
        self._closings: set[asyncio.Task[None]] = set()
        self._purged_at = time.monotonic()
        self._purging: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    # Handlers

    def on(
        self,
        type: str,
        *,
        topic: str,
        retry: Retry | None = None,
        timeout: Seconds | None = None,
    ) -> Callable[[F], F]:
        """Handle events of a type. The handler, sync or async, is given what it is annotated with:
        `Event[T]`, the data as any other type, the SQL inbox's session, or `Held`, the claim."""
        return self._register(type, topic, retry, timeout, 0)

    def on_batch(
        self,
        type: str,
        *,
        topic: str,
        size: int = 100,
        retry: Retry | None = None,
        timeout: Seconds | None = None,
    ) -> Callable[[F], F]:
        """Handle many events of a type at once: with SqlInbox, in one transaction. If that fails,
        they are handled one by one. The handler takes lists."""
        return self._register(type, topic, retry, timeout, max(size, 1))

    def default(
        self, *, topic: str, retry: Retry | None = None, timeout: Seconds | None = None
    ) -> Callable[[F], F]:
        """Handle the events of a topic that no other handler is for."""
        return self._register(None, topic, retry, timeout, 0)

    def _register(
        self,
        type: str | None,
        topic: str,
        retry: Retry | None,
        timeout: Seconds | None,
        batch: int,
    ) -> Callable[[F], F]:
        fields.name("topic", topic)

        def register(function: F) -> F:
            handler = handler_of(function, retry=retry, timeout=timeout, batch=batch)
            self._policy.inbox.check(handler)
            if handler.asynchronous is False and timeout is not None:
                raise BadHandler(function, "a thread cannot be stopped: no timeout for sync ones")
            self._handlers.add(topic, type, handler)
            return function

        return register

    # Running

    def stop(self) -> None:
        """Let what runs finish, give the lanes back, and return from run(). Safe in a signal
        handler."""
        self._stopping.set()

    async def run(self) -> None:
        """Consume until `stop()`. Whatever time heals is waited out."""
        pool = Pool(self._concurrency)
        try:
            while not self._stopping.is_set():
                async for attempt in AsyncRetrying(
                    retry=retry_if_exception_type((*OUTAGE, NoProjector)),
                    wait=wait_random_exponential(multiplier=0.1, max=5),
                    sleep=self._pause,
                    stop=lambda _: self._stopping.is_set(),
                ):
                    with attempt:
                        await self._share(pool)
                await self._pause(self._lane_lease.total_seconds() / 3)
        finally:
            await self._leave(pool)

    async def drain(self) -> None:
        """Handle everything that is in the streams now, on every lane that is free; then return.
        For tests and scripts."""
        pool = Pool(self._concurrency)
        try:
            await self._share(pool)
            keeping = asyncio.create_task(self._keep_sharing(pool))
            try:
                while behind := [lane for lane in self._held.values() if not lane.at_rest]:
                    await behind[0].changed()
                    behind[0].check()
            finally:
                await end(keeping)
        finally:
            await self._leave(pool)

    async def _keep_sharing(self, pool: Pool) -> None:
        while True:
            await asyncio.sleep(self._lane_lease.total_seconds() / 3)
            with suppress(*OUTAGE):
                await self._share(pool)

    async def _share(self, pool: Pool) -> None:
        """Renew our lanes, give up what is more than our share, take what is free."""
        lanes = await self._meet()
        members = await self._join(self._lane_lease)
        share = -(-len(lanes) // max(members, 1)) if self._policy.ordered else len(lanes)
        for number, lane in list(self._held.items()):
            lane.check()
            if lane.lost or len(self._held) > share:
                del self._held[number]
                self._closings.add(asyncio.create_task(self._close(lane)))
        self._purge()
        for number in sorted(lanes, key=lambda number: number not in self._held):
            if number in self._held or len(self._held) < share:
                await self._hold(number, pool)

    def _purge(self) -> None:
        """Now and then, by whoever holds the first lane."""
        now = time.monotonic()
        if FIRST_LANE in self._held and now - self._purged_at > PURGE_EVERY.total_seconds():
            self._purged_at = now
            self._purging = asyncio.create_task(self._purge_all())

    async def _purge_all(self) -> None:
        try:
            while await self._policy.inbox.purge():
                pass
        except Exception as problem:  # whatever it is, the next time may do better
            log.warning("old rows of the inbox were not deleted: %s", type(problem).__name__)

    async def _hold(self, number: int, pool: Pool) -> None:
        lane = self._held.get(number)
        ledger = lane.ledger if lane else self._ledger(number)
        if not self._policy.ordered:
            places: list[str] | None = await ledger.marked()
        else:
            places = await ledger.hold(self._lane_lease)
        if places is None:
            if lane:
                lane.lose()
            return
        if lane is None:
            lane = self._held[number] = Lane(ledger, self._policy, pool, self._waiting)
            lane.start()
        lane.retry(places)

    def _ledger(self, number: int) -> Ledger:
        token = f"{self.token}:{secrets.token_hex(4)}"
        return Ledger(
            redis=self._redis,
            name=self.name,
            lane=number,
            group=self.group,
            topics=self._handlers.topics,
            token=token,
            consumer=OWNER if self._policy.ordered else self.token,
            lease=self._policy.claim_lease,
            kept=self._policy.inbox.kept,
            by_seq=self._by_seq,
        )

    async def _meet(self) -> range:
        """How many lanes there are. And does the inbox remember longer than rows are kept?"""
        if not self._handlers.topics:
            raise BadHandler(self, "a consumer without handlers has nothing to do")
        found: Any = await self._redis.hgetall(layout.meta(self.name))
        told = {key.decode(): int(value) for key, value in found.items()}
        retention, window = told.get("retention", 0), self._policy.inbox.window
        if window.total_seconds() < retention and not self._by_seq:
            raise WindowTooShort(window.total_seconds(), retention)
        lanes = told.get("lanes", self._lanes)
        if lanes is None:
            raise NoProjector(self.name)
        return range(lanes)

    async def _join(self, length: timedelta) -> int:
        members = layout.members(self.name, self.group)
        milliseconds = int(length / timedelta(milliseconds=1))
        join = load("inbox.consumer", "join")
        return int(await script.run(self._redis, join, [members], [self.token, milliseconds]))

    async def _leave(self, pool: Pool) -> None:
        closing = [self._close(lane) for lane in self._held.values()]
        self._held.clear()
        await asyncio.gather(*closing, *self._closings)
        if self._purging is not None:
            await end(self._purging)
        await pool.close()
        with suppress(*OUTAGE):
            await self._join(timedelta(0))
        await self._redis.aclose()
        await self._waiting.aclose()

    async def _close(self, lane: Lane) -> None:
        now = asyncio.get_running_loop().time()
        await lane.close(now + self._stop_timeout.total_seconds())

    async def _pause(self, length: float) -> None:
        """A sleep that stop() ends."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), length)


def _client(redis: Redis, **options: Any) -> Redis:
    """Like the one that was given, but it answers in bytes, and never resends by itself."""
    pool = redis.connection_pool
    settings = {**pool.connection_kwargs, **options, "decode_responses": False}
    settings |= {"retry": RedisRetry(NoBackoff(), 0), "retry_on_timeout": False}
    return Redis.from_pool(type(pool)(connection_class=pool.connection_class, **settings))


def _duration(field: str, value: Seconds) -> timedelta:
    return timedelta(seconds=seconds(field, value))
