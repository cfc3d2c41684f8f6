"""A PostgreSQL server to measure on, and a schema of our own in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg  # type: ignore[import-untyped, unused-ignore]
from sqlalchemy import event, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from benchmarks.tables import SCHEMA, Base
from benchmarks.timing import Work

WORKERS = 8


@dataclass(frozen=True)
class Database:
    """Two engines, because an outbox listens on the engines it meets, not only on sessions."""

    plain: AsyncEngine
    ours: AsyncEngine
    driver: asyncpg.Connection
    version: str
    fsync: str

    async def rows(self, table: str) -> int:
        async with self.plain.connect() as connection:
            return int(await connection.scalar(text(f"SELECT count(*) FROM {table}")) or 0)

    async def statements(self, work: Work) -> int:
        """How many statements the work hands to the driver; an executemany is one."""
        seen: list[object] = []

        def note(*arguments: object) -> None:
            seen.append(arguments)

        engines = [engine.sync_engine for engine in (self.plain, self.ours)]
        for engine in engines:
            event.listen(engine, "before_cursor_execute", note)
        try:
            await work()
        finally:
            for engine in engines:
                event.remove(engine, "before_cursor_execute", note)
        return len(seen)


@asynccontextmanager
async def database(url: str | None, fsync: str) -> AsyncIterator[Database]:
    """The database of `url`, or an embedded server; our schema is made anew, and dropped after."""
    if url is not None:
        async with _schema(url) as made:
            yield made
        return
    from projector.embedded import servers  # not needed where there is a server already

    async with servers(postgres={"fsync": fsync}) as started, _schema(started.database_url) as made:
        yield made


@asynccontextmanager
async def _schema(url: str) -> AsyncIterator[Database]:
    plain, ours = _engine(url), _engine(url)
    plain_url = make_url(url).set(drivername="postgresql")
    driver = await asyncpg.connect(
        plain_url.render_as_string(hide_password=False), server_settings={"search_path": SCHEMA}
    )
    try:
        await driver.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE; CREATE SCHEMA {SCHEMA}")
        async with plain.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        version = await driver.fetchval("SHOW server_version")
        yield Database(plain, ours, driver, version, await driver.fetchval("SHOW fsync"))
        await driver.execute(f"DROP SCHEMA {SCHEMA} CASCADE")
    finally:
        await driver.close()
        await plain.dispose()
        await ours.dispose()


def _engine(url: str) -> AsyncEngine:
    return create_async_engine(
        make_url(url).set(drivername="postgresql+asyncpg"),
        pool_size=WORKERS,
        # A lone worker then always has the same connection, and its prepared statements.
        pool_use_lifo=True,
        connect_args={"server_settings": {"search_path": SCHEMA}},
    )
