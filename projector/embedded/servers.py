"""Both servers at once, as most tests and the demo want them."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from projector.embedded.binaries import Search
from projector.embedded.errors import MissingBinariesError
from projector.embedded.postgres import Postgres
from projector.embedded.settings import Settings
from projector.embedded.valkey import Valkey


@dataclass(frozen=True)
class Servers:
    """A handle is None where the URL came from the environment: that server is not ours."""

    database_url: str
    redis_url: str
    postgres: Postgres | None
    valkey: Valkey | None


@asynccontextmanager
async def servers(
    *,
    postgres: Settings | None = None,
    valkey: Settings | None = None,
    postgres_version: int | None = None,
    search: Search | None = None,
) -> AsyncIterator[Servers]:
    """A fresh PostgreSQL and a fresh Valkey, gone when the body ends or this process does.

    Where there are no programs for one of them, ONCEBOX_DATABASE_URL or ONCEBOX_REDIS_URL names
    the server to use instead, if set.
    """
    database = Postgres(postgres, postgres_version, search=search)
    broker = Valkey(valkey, search=search)
    try:
        database_url, redis_url = await asyncio.gather(
            asyncio.to_thread(_start, database), asyncio.to_thread(_start, broker)
        )
        yield Servers(
            database_url,
            redis_url,
            database if database.running else None,
            broker if broker.running else None,
        )
    finally:
        # A thread that is still starting one of them cannot be cancelled; close waits for it.
        await asyncio.gather(asyncio.to_thread(database.close), asyncio.to_thread(broker.close))


def _start(server: Postgres | Valkey) -> str:
    try:
        server.start()
    except MissingBinariesError as exc:
        if url := os.environ.get(exc.variable):
            return url
        raise
    return server.url()
