"""Chores end when they are told to."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from outbox.ending import end


async def deaf() -> None:
    """As a driver that takes a cancellation for its own time-out."""
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(600)
    await asyncio.sleep(600)


async def failing() -> None:
    raise ValueError("told by whoever asks for the result")


async def test_a_swallowed_cancellation_is_repeated():
    """And what failed before is no trouble."""
    tasks = [asyncio.create_task(chore()) for chore in (deaf, failing)]
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await end(*tasks)
    assert tasks[0].cancelled()
