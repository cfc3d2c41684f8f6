"""Ends tasks for good."""

from __future__ import annotations

import asyncio
from typing import Any

AGAIN = 0.05
"""Seconds after which a task that goes on is cancelled again."""


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks until they have ended; what they raise is theirs.

    Once is not enough: redis-py looks at a connection under a time-out of zero, and a cancel that
    arrives just before is taken for that time-out, and lost.
    """
    going = {task for task in tasks if not task.done()}
    while going:
        for task in going:
            task.cancel()
        _, going = await asyncio.wait(going, timeout=AGAIN)
    await asyncio.gather(*tasks, return_exceptions=True)
