"""What runs beside the relay, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

PATIENCE = 1.0
"""Seconds for a chore to end and clean up before it is cancelled again."""


async def end(chores: Collection[asyncio.Task[Any]], patience: float = PATIENCE) -> None:
    """Cancel them until they are over. Once is not enough: drivers that are just connecting may
    swallow a cancellation, and the chore would go on for ever."""
    while running := [chore for chore in chores if not chore.done()]:
        for chore in running:
            chore.cancel()
        await asyncio.wait(running, timeout=patience)
    await asyncio.gather(*chores, return_exceptions=True)
