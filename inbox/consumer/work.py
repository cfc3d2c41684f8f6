"""Runs chains: the events of one place, one after another; different places side by side."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from inbox.consumer.message import Message
from outbox.ending import end


class Chain:
    """Messages that wait for each other."""

    __slots__ = ("handle", "messages", "place", "started")

    def __init__(self, place: str, handle: Callable[[Chain], Awaitable[None]]) -> None:
        self.place = place
        self.messages: deque[Message] = deque()
        self.handle = handle
        self.started = False


class Pool:
    """As many workers as handlers may run at once, in all lanes of a process."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._ready: asyncio.Queue[Chain] = asyncio.Queue()
        self._workers: list[asyncio.Task[None]] = []
        self.alone = asyncio.Lock()
        """Held while an event is handled that may have killed the last process that tried: one at a
        time, so that the next death tells which it was."""

    def start(self, chain: Chain) -> None:
        self._ready.put_nowait(chain)
        if len(self._workers) < self._size:
            self._workers.append(asyncio.create_task(self._work()))

    async def _work(self) -> None:
        while True:
            chain = await self._ready.get()
            await chain.handle(chain)

    async def close(self) -> None:
        await end(*self._workers)
        self._workers.clear()
