"""SQL from synchronous code."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg  # type: ignore[import-untyped, unused-ignore]


def fetch(dsn: str, statement: str) -> list[Any]:
    """On a connection and in an event loop of its own: the caller's thread may be running one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, _fetch(dsn, statement)).result()


async def _fetch(dsn: str, statement: str) -> list[Any]:
    connection = await asyncpg.connect(dsn, ssl=False, timeout=10)
    try:
        return list(await connection.fetch(statement))
    finally:
        await connection.close()
