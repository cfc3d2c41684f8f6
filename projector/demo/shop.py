"""The shop: orders and their events in one transaction, some of which roll back."""

from __future__ import annotations

import asyncio
import random

from sqlalchemy import BigInteger, Text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outbox import AUTO, Outbox

CUSTOMERS = 12
POISON = "customer-7"
"""Whose first order nobody can bill, until somebody repairs it."""


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    total: Mapped[int]


class Bill(Base):
    """What the consumers write: the effect of an event."""

    __tablename__ = "bills"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    event_id: Mapped[str] = mapped_column(Text)
    customer: Mapped[str]
    seq: Mapped[int]


class Repair(Base):
    """A row of it lets the poisonous order be billed."""

    __tablename__ = "repairs"
    customer: Mapped[str] = mapped_column(primary_key=True)


events = Outbox(Base.metadata, name="shop")


class OutOfStock(Exception):
    """What makes an order roll back."""


class Shop:
    """Places orders, and counts what became of them."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._sessions = async_sessionmaker(engine)
        self.committed = 0
        self.rolled_back = 0

    async def write(self, orders: int, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(orders):
            try:
                await self._place(chance)
                self.committed += 1
            except OutOfStock:
                self.rolled_back += 1
            await asyncio.sleep(chance.random() * 0.02)

    async def _place(self, chance: random.Random) -> None:
        customer = f"customer-{chance.randint(1, CUSTOMERS)}"
        async with self._sessions() as session, session.begin():
            order = Order(customer=customer, total=chance.randint(1, 100))
            session.add(order)
            await session.flush()
            data = {"order": order.id, "total": order.total}
            events.emit(session, "order.placed", topic="orders", key=customer, data=data, seq=AUTO)
            if chance.random() < 0.25:
                raise OutOfStock

    async def repair(self) -> None:
        """Make the poisonous order one that can be billed."""
        async with self._sessions() as session, session.begin():
            session.add(Repair(customer=POISON))
