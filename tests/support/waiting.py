"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

DEADLINE = 15


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    """Asks again and again until the answer is true; raises TimeoutError when it never is."""
    async with asyncio.timeout(DEADLINE):
        while not await condition():  # noqa: ASYNC110 a server's state tells nobody when it changes
            await asyncio.sleep(0.002)
