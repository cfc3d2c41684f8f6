"""A place where commands are handled: orders and their records, under one driver."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from sqlalchemy import Engine, MetaData, create_engine, func, make_url, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

import inbox
from inbox import IdempotencyRecord, SqlAlchemyIdempotency
from support.waiting import until

T = TypeVar("T")


class Base(DeclarativeBase):
    metadata = MetaData()


inbox.tables(Base.metadata)


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]


async def done(outcome: T | Awaitable[T]) -> T:
    """What a call gives, from sync and async sessions alike."""
    return await outcome if inspect.isawaitable(outcome) else outcome  # type: ignore[return-value]


class Desk:
    def __init__(self, engine: Engine | AsyncEngine, schema: str = "") -> None:
        self.engine = engine
        self.schema = schema

    @property
    def is_async(self) -> bool:
        return isinstance(self.engine, AsyncEngine)

    @property
    def is_postgres(self) -> bool:
        return self.engine.dialect.name == "postgresql"

    def session(self, **options: Any) -> Any:
        kind = AsyncSession if self.is_async else Session
        return kind(self.engine, expire_on_commit=False, **options)

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncIterator[Any]:
        """A session; what is not committed is rolled back at the end."""
        session = self.session(**options)
        try:
            yield session
        finally:
            await done(session.close())

    async def create(self) -> None:
        if isinstance(self.engine, AsyncEngine):
            async with self.engine.begin() as connection:
                await connection.run_sync(Base.metadata.create_all)
        else:
            Base.metadata.create_all(self.engine)

    async def records(self, *columns: str) -> list[tuple[Any, ...]]:
        """What is committed, by tenant and key."""
        wanted = [getattr(IdempotencyRecord, name) for name in columns or ("state",)]
        order = IdempotencyRecord.tenant_id, IdempotencyRecord.idempotency_key
        async with self.open() as session:
            rows = await done(session.execute(select(*wanted).order_by(*order)))
            return [tuple(row) for row in rows]

    async def orders(self) -> int:
        async with self.open() as session:
            return int(await done(session.scalar(select(func.count()).select_from(Order))))

    async def complete(self, key: str = "k", response: Any = None, **options: Any) -> None:
        """A command that was handled before."""
        async with self.open() as session:
            records = SqlAlchemyIdempotency(session, **options)
            await done(records.lock(key, "CreateOrder", "hash"))
            await done(records.store_response(key, response, 201))
            await done(session.commit())

    async def expired(self, session: Any, key: str = "k") -> None:
        """Until a record of a moment is over, as one open transaction sees it."""
        records = SqlAlchemyIdempotency(session)

        async def over() -> bool:
            return await done(records.get_response(key)) is None

        await until(over)

    async def dispose(self) -> None:
        await done(self.engine.dispose())


def postgres_engine(driver: str, url: str, schema: str, **options: Any) -> Engine | AsyncEngine:
    target = make_url(url).set(drivername=f"postgresql+{driver}")
    if driver == "asyncpg":
        arguments: dict[str, Any] = {"server_settings": {"search_path": schema}}
    else:
        arguments = {"options": f"-c search_path={schema}"}
    create: Any = create_engine if driver == "psycopg" else create_async_engine
    engine: Engine | AsyncEngine = create(
        target, connect_args=arguments, poolclass=NullPool, **options
    )
    return engine
