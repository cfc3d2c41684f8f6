"""Consumers that the tests run as processes; what they do is seen in Redis or the database."""

from __future__ import annotations

import asyncio
import os
import random

from redis.asyncio import Redis
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from inbox.consumer.consumer import Consumer
from inbox.consumer.retry import Retry
from inbox.redis_inbox import RedisInbox
from inbox.sql_inbox import SqlInbox
from outbox import Event, Outbox

NAME = os.environ["TEST_NAME"]
redis = Redis.from_url(os.environ["TEST_URL"])
chance = random.Random()
settings = {"lane_lease": 0.5, "claim_lease": 1.0, "retry": Retry(attempts=5, first=0.01)}

# Appends what it handles to a list, and notes who is inside: two at once would be seen.
billing = Consumer(redis, NAME, group="billing", inbox=RedisInbox(redis), **settings)


@billing.on("changed", topic="t")
async def handle(event: Event) -> None:
    inside = f"{NAME}:inside:{event.key}"
    if await redis.incr(inside) != 1:
        await redis.rpush(f"{NAME}:overlaps", event.key)
    await redis.rpush(f"{NAME}:begun", str(event.id))
    await asyncio.sleep(chance.random() * 0.004)
    await redis.rpush(f"{NAME}:effects", f"{event.key} {event.seq} {event.id}")
    await redis.decr(inside)


@billing.on("killer", topic="t")
async def die(event: Event) -> None:
    await redis.rpush(f"{NAME}:deaths", str(event.id))
    os._exit(9)


if "TEST_DATABASE" in os.environ:
    engine = create_async_engine(os.environ["TEST_DATABASE"])
    events = Outbox(name="next", lanes=1)
    ledger = Consumer(
        redis,
        NAME,
        group="ledger",
        inbox=SqlInbox(async_sessionmaker(engine)),
        **settings,
    )

    @ledger.on("changed", topic="t")
    async def book(event: Event, session: AsyncSession) -> None:
        values = {"key": event.key, "seq": event.seq}
        await session.execute(text("insert into effects (key, seq) values (:key, :seq)"), values)
        events.emit(session, "booked", topic="books", key=event.key, data={}, seq=event.seq)
        await asyncio.sleep(chance.random() * 0.004)
