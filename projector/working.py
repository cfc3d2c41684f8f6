"""Lanes at work side by side, each in a task of its own.

A turn waits for its lanes, but not for ever: a server that does not answer holds up its own lanes,
and the others have their next turn without them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from redis.exceptions import RedisError

from outbox.ending import end

LONG = 0.25
"""Seconds that a turn waits for its lanes. One that takes longer is left to it."""
GRACE = 2.0
"""Seconds that lanes have to finish their batch at the end."""


class Working:
    """Which lanes are at work, and what came of it."""

    def __init__(self) -> None:
        self._tasks: dict[int, asyncio.Task[int]] = {}

    def __contains__(self, lane: int) -> bool:
        return lane in self._tasks

    async def begin(self, jobs: Mapping[int, Coroutine[Any, Any, int]]) -> None:
        """Until they are done, or it has taken long."""
        begun = {lane: asyncio.create_task(job) for lane, job in jobs.items()}
        self._tasks |= begun
        if begun:
            await asyncio.wait(begun.values(), timeout=LONG)

    def collect(self) -> tuple[dict[int, int], dict[int, RedisError]]:
        """What the lanes that are done have published, and which have failed at Redis. Any other
        error is raised."""
        counts: dict[int, int] = {}
        failed: dict[int, RedisError] = {}
        for lane in [lane for lane, task in self._tasks.items() if task.done()]:
            try:
                counts[lane] = self._tasks.pop(lane).result()
            except RedisError as problem:
                failed[lane] = problem
        return counts, failed

    async def finish(self) -> None:
        """Let them finish their batches."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=GRACE)
            await end(*self._tasks.values())
            self._tasks.clear()
