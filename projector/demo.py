"""The demo: a small shop writes orders and events, some of which are rolled back."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outbox import AUTO, Outbox
from projector.embedded import servers

WRITERS = 4
ORDERS_EACH = 25


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
    """Run it. Returns the exit code: 0 if every committed order has its events, and no other."""
    print("starting PostgreSQL and Valkey …", flush=True)
    async with servers() as real:
        engine = create_async_engine(real.database_url)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        print(f"{WRITERS} writers place {ORDERS_EACH} orders each, in one transaction per order")
        outcomes = await asyncio.gather(*(_write(engine, seed) for seed in range(WRITERS)))
        rolled_back = sum(outcomes)
        code = await _report(engine, rolled_back)
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


async def _report(engine: AsyncEngine, rolled_back: int) -> int:
    log = events.table.c
    async with engine.connect() as connection:
        orders = set(await _column(connection, select(Order.id)))
        keys = set(
            map(int, await _column(connection, select(log.key).where(log.topic == "orders")))
        )
        charged = await connection.execute(
            select(log.key, func.count(), func.max(log.seq))
            .where(log.topic == "customers")
            .group_by(log.key)
            .order_by(log.key)
        )
        lanes = Counter(await _column(connection, select(log.lane)))
        print("\nthe outbox holds, per customer, events numbered without holes:")
        holes = 0
        for key, count, last in charged:
            holes += last - count
            print(f"  {key:<12} {count:>3} events, last seq {last}")
    spread = ", ".join(f"{lane}: {count}" for lane, count in sorted(lanes.items()))
    print(f"over its lanes: {spread}\n")
    missing, extra = len(orders - keys), len(keys - orders)
    print(
        f"audit: committed={len(orders)} rolled_back={rolled_back} events={lanes.total()} "
        f"missing={missing} extra={extra} holes={holes}"
    )
    right = not (missing or extra or holes) and lanes.total() == 2 * len(orders)
    return 0 if right and rolled_back else 1


async def _column(connection: AsyncConnection, statement: Select[Any]) -> Sequence[Any]:
    values: Sequence[Any] = (await connection.execute(statement)).scalars().all()
    return values
