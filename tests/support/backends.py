"""One body of a test, run under every driver.

A body is a plain function of a Session. Async drivers run it through `AsyncSession.run_sync`, so
that the very same calls go through greenlets and asyncio.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Engine, MetaData, create_engine, event, make_url
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

T = TypeVar("T")


@dataclass
class Backend:
    driver: str
    engine: Engine | AsyncEngine

    @property
    def is_async(self) -> bool:
        return isinstance(self.engine, AsyncEngine)

    @property
    def is_postgres(self) -> bool:
        return self.engine.dialect.name == "postgresql"

    @property
    def sync_engine(self) -> Engine:
        return self.engine.sync_engine if isinstance(self.engine, AsyncEngine) else self.engine

    def run(self, body: Callable[[Session], T], **options: Any) -> T:
        """`body` with a session; nothing is committed unless the body does."""
        if isinstance(self.engine, AsyncEngine):
            return asyncio.run(self._run(body, options))
        with Session(**{"bind": self.engine, **options}) as session:
            return body(session)

    async def _run(self, body: Callable[[Session], T], options: dict[str, Any]) -> T:
        async with AsyncSession(**{"bind": self.engine, **options}) as session:
            return await session.run_sync(body)

    def connect(self, body: Callable[[Connection], T]) -> T:
        """`body` with a connection; nothing is committed unless the body does."""
        if isinstance(self.engine, AsyncEngine):
            return asyncio.run(self._connect(body))
        with self.engine.connect() as connection:
            return body(connection)

    async def _connect(self, body: Callable[[Connection], T]) -> T:
        async with self.engine.connect() as connection:
            return await connection.run_sync(body)

    def create(self, metadata: MetaData) -> None:
        def create(connection: Connection) -> None:
            metadata.create_all(connection)
            connection.commit()

        self.connect(create)

    def rows(self, table: Any, *columns: str) -> list[tuple[Any, ...]]:
        """What is committed, in id order."""
        statement = (
            table.select()
            .order_by(table.c.id)
            .with_only_columns(*[table.c[name] for name in columns])
        )
        return [tuple(row) for row in self.connect(lambda c: c.execute(statement).all())]

    def dispose(self) -> None:
        self.sync_engine.dispose(close=not self.is_async)


def postgres_backend(driver: str, url: str, schema: str) -> Backend:
    target = make_url(url).set(drivername=f"postgresql+{driver}")
    if driver == "asyncpg":
        arguments = {"server_settings": {"search_path": schema}}
        # Each run has an event loop of its own, so no connection may outlive it.
        engine = create_async_engine(target, connect_args=arguments, poolclass=NullPool)
        return Backend(driver, engine)
    return Backend(
        driver,
        create_engine(target, connect_args={"options": f"-c search_path={schema}"}, pool_size=20),
    )


def sqlite_backend(driver: str, folder: Path) -> Backend:
    file = folder / "test.db"
    if driver == "aiosqlite":
        url = f"sqlite+aiosqlite:///{file}"
        backend = Backend(driver, create_async_engine(url, poolclass=NullPool))
    else:
        backend = Backend(driver, create_engine(f"sqlite:///{file}", poolclass=NullPool))
    _real_savepoints(backend.sync_engine)
    return backend


def _real_savepoints(engine: Engine) -> None:
    """SQLAlchemy's recipe: without it, the driver begins too late for savepoints to work."""

    @event.listens_for(engine, "connect")
    def no_hidden_begin(connection: Any, _: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")
