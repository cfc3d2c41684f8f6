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
        self._ready: deque[Chain] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self.alone = asyncio.Lock()
        """Held while an event is handled that may have killed the last process that tried: one at a
        time, so that the next death tells which it was."""

    def start(self, chain: Chain) -> None:
        self._ready.append(chain)
        if len(self._workers) < self._size:
            worker = asyncio.create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        while self._ready:
            chain = self._ready.popleft()
            await chain.handle(chain)

    async def close(self) -> None:
        await end(*self._workers)
        self._workers.clear()
