"""The transactions that are compared, each as one coroutine function without arguments."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from uuid import uuid4

import asyncpg  # type: ignore[import-untyped, unused-ignore]
from faststream_outbox import OutboxBroker
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

from benchmarks.tables import DATA, PAYLOAD, PEER, order, plain_row
from outbox import AUTO, Outbox, codec
from outbox.versions import Auto

KEYS = 1000

INSERT_ORDER = "INSERT INTO orders (customer, total, placed_at) VALUES ($1, $2, $3)"
INSERT_ROW = """
    INSERT INTO plain_row
        (xid, lane, event_id, topic, type, key, seq, data, content_type,
         traceparent, tracestate, tenant, headers, created_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"""


class Keys:
    """One key after the other, out of so few that counters are met again."""

    def __init__(self) -> None:
        self._numbers = count()

    def next(self) -> str:
        return f"order-{next(self._numbers) % KEYS}"


class Plain:
    """Without an outbox of ours: SQLAlchemy alone, and faststream-outbox."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._sessions = async_sessionmaker(engine, expire_on_commit=False)
        self._broker = OutboxBroker(engine, outbox_table=PEER)
        self._keys = Keys()

    async def business_row(self) -> None:
        async with self._sessions() as session, session.begin():
            session.add(order())

    async def two_rows(self) -> None:
        async with self._sessions() as session, session.begin():
            session.add(order())
            session.add(plain_row(self._keys.next()))

    async def row_and_publish(self) -> None:
        async with self._sessions() as session, session.begin():
            session.add(order())
            await self._broker.publish(DATA, queue="orders", session=session)

    async def publish(self) -> None:
        async with self._sessions() as session, session.begin():
            await self._broker.publish(DATA, queue="orders", session=session)


class Ours:
    """With events of ours."""

    def __init__(self, engine: AsyncEngine, events: Outbox) -> None:
        self._sessions = async_sessionmaker(engine, expire_on_commit=False)
        self._events = events
        self._keys = Keys()

    async def business_row(self) -> None:
        async with self._sessions() as session, session.begin():
            session.add(order())

    async def one_event(self) -> None:
        async with self._sessions() as session, session.begin():
            self._emit(session, self._keys.next())

    async def row_and_event(self) -> None:
        async with self._sessions() as session, session.begin():
            session.add(order())
            self._emit(session, self._keys.next())

    async def row_as_key(self) -> None:
        async with self._sessions() as session, session.begin():
            row = order()
            session.add(row)
            self._emit(session, row)

    async def row_and_five(self) -> None:
        await self._row_and_five([self._keys.next()] * 5)

    async def row_and_five_numbered(self) -> None:
        await self._row_and_five([self._keys.next()] * 5, AUTO)

    async def row_and_five_keys_numbered(self) -> None:
        await self._row_and_five([self._keys.next() for _ in range(5)], AUTO)

    async def thousand(self) -> None:
        async with self._sessions() as session, session.begin():
            for _ in range(1000):
                self._emit(session, self._keys.next())

    async def _row_and_five(self, keys: list[str], seq: Auto | None = None) -> None:
        async with self._sessions() as session, session.begin():
            session.add(order())
            for key in keys:
                self._emit(session, key, seq)

    def _emit(self, session: AsyncSession, key: object, seq: Auto | None = None) -> None:
        self._events.emit(session, "order.placed", topic="orders", key=key, data=DATA, seq=seq)


class Driver:
    """The same two rows by asyncpg alone: what the server and the wire cost."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._keys = Keys()

    async def two_rows(self) -> None:
        now = datetime.now(UTC)
        row = (1, 1, uuid4(), "orders", "order.placed", self._keys.next(), None, PAYLOAD)
        await self._connection.execute("BEGIN")
        await self._connection.execute(INSERT_ORDER, DATA["customer"], Decimal("149.90"), now)
        await self._connection.execute(INSERT_ROW, *row, codec.JSON, None, None, None, None, now)
        await self._connection.execute("COMMIT")
