"""The demo: a small shop writes orders and events, some roll back, and a projector relays them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outbox import AUTO, Outbox
from projector import keys
from projector.cluster import AnyRedis
from projector.connect import redis_of
from projector.daemon import Projector
from projector.embedded import servers
from projector.settings import Settings

WRITERS = 4
ORDERS_EACH = 25
PATIENCE = 30.0


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    total: Mapped[int]


events = Outbox(Base.metadata, name="shop")


class OutOfStock(Exception):
    """What makes an order of the demo roll back."""


async def main() -> int:
    """Run it. Returns the exit code: 0 if the streams hold the events of every committed order,
    once each and in order, and no other."""
    print("starting PostgreSQL and Valkey …", flush=True)
    async with servers() as real:
        engine, redis = create_async_engine(real.database_url), redis_of(real.redis_url)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        projector = Projector(engine, redis, Settings(name=events.name))
        relaying = asyncio.create_task(projector.run())
        print(f"{WRITERS} writers place {ORDERS_EACH} orders each, one transaction per order")
        outcomes = await asyncio.gather(*(_write(engine, seed) for seed in range(WRITERS)))
        code = await _report(engine, redis, rolled_back=sum(outcomes))
        projector.stop()
        await relaying
        await redis.aclose()
        await engine.dispose()
    return code


async def _write(engine: AsyncEngine, seed: int) -> int:
    chance = random.Random(seed)
    sessions = async_sessionmaker(engine)
    rolled_back = 0
    for _ in range(ORDERS_EACH):
        try:
            await _place(sessions, chance)
        except OutOfStock:
            rolled_back += 1
    return rolled_back


async def _place(sessions: async_sessionmaker[AsyncSession], chance: random.Random) -> None:
    customer = f"customer-{chance.randint(1, 5)}"
    async with sessions() as session, session.begin():
        order = Order(customer=customer, total=chance.randint(1, 100))
        session.add(order)
        data = {"total": order.total}
        events.emit(session, "order.placed", topic="orders", key=order, data=data)
        events.emit(
            session, "customer.charged", topic="customers", key=customer, data=data, seq=AUTO
        )
        if chance.random() < 0.25:
            raise OutOfStock


async def _report(engine: AsyncEngine, redis: AnyRedis, rolled_back: int) -> int:
    async with engine.connect() as connection:
        orders = set(map(str, await _column(connection, select(Order.id))))
        written = await _column(connection, select(events.table.c.event_id))
    print(f"the outbox holds {len(written)} events of {len(orders)} committed orders")
    placed = await _arrived(redis, "orders", len(orders))
    charged = await _arrived(redis, "customers", len(orders))
    print("their streams hold, per customer, events numbered without holes:")
    out_of_order = 0
    for customer in sorted({entry["subject"] for entry in charged}):
        numbers = [int(e["sequence"]) for e in charged if e["subject"] == customer]
        out_of_order += numbers != list(range(1, len(numbers) + 1))
        print(f"  {customer:<12} {len(numbers):>3} events, last sequence {numbers[-1]}")
    delivered = Counter(entry["id"] for entry in (*placed, *charged))
    lost = len({str(event_id) for event_id in written} - delivered.keys())
    doubled = sum(count - 1 for count in delivered.values())
    strange = len({entry["subject"] for entry in placed} - orders)
    print(
        f"\naudit: committed={len(orders)} rolled_back={rolled_back} events={len(written)} "
        f"delivered={len(delivered)} lost={lost} duplicated={doubled} "
        f"out_of_order={out_of_order} not_committed={strange}"
    )
    wrong = lost or doubled or out_of_order or strange or len(written) != 2 * len(orders)
    return 1 if wrong or not rolled_back else 0


async def _arrived(redis: AnyRedis, topic: str, count: int) -> list[dict[str, str]]:
    """The entries of a topic over all lanes, once there are as many as there should be."""
    streams = [keys.stream(events.name, lane, topic) for lane in range(events.lanes)]
    async with asyncio.timeout(PATIENCE):
        while sum([await redis.xlen(stream) for stream in streams]) < count:  # noqa: ASYNC110  # a stream has no event to wait for
            await asyncio.sleep(0.01)
    found: list[dict[str, str]] = []
    for stream in streams:
        entries: Any = await redis.xrange(stream)
        found += [{k.decode(): v.decode() for k, v in entry.items()} for _, entry in entries]
    return found


async def _column(connection: AsyncConnection, statement: Select[Any]) -> Sequence[Any]:
    values: Sequence[Any] = (await connection.execute(statement)).scalars().all()
    return values
