"""The consumer of `projector demo`: bills orders, each in one transaction with the inbox's row."""

from __future__ import annotations

import os
from typing import Any

from redis.asyncio import Redis
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from inbox.consumer.consumer import Consumer
from inbox.consumer.retry import Retry
from inbox.sql_inbox import SqlInbox
from outbox import Event

engine = create_async_engine(os.environ["PROJECTOR_DATABASE_URL"])
redis = Redis.from_url(os.environ["PROJECTOR_REDIS_URL"])

billing = Consumer(
    redis,
    os.environ["PROJECTOR_NAME"],
    group="billing",
    inbox=SqlInbox(async_sessionmaker(engine)),
    retry=Retry(attempts=2, first=0.05),
    lane_lease=1,
    claim_lease=2,
)

BROKEN = text("select :customer = 'customer-7' and :seq = 1 and not exists (select from repairs)")
WRITE = text("insert into bills (event_id, customer, seq) values (:event_id, :customer, :seq)")


@billing.on("order.placed", topic="orders")
async def bill(event: Event[Any], session: AsyncSession) -> None:
    about = {"customer": event.key, "seq": event.seq}
    if (await session.execute(BROKEN, about)).scalar_one():
        raise ValueError(f"order {event.seq} of {event.key} has no address")
    await session.execute(WRITE, {"event_id": str(event.id), **about})
