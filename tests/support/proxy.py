"""A bad network between a client and a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Literal
from urllib.parse import urlsplit

Loss = Literal["request", "reply"]

CHUNK = 65536


class Proxy:
    """Forwards bytes, except for what it is told to lose; a loss also cuts the connection."""

    def __init__(self, url: str) -> None:
        self.target = url
        self._loss: Loss | None = None
        self._spared = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The server's, with our address instead."""
        address = urlsplit(self.target)
        login = address.netloc.rpartition("@")[0]
        host, port = self._server.sockets[0].getsockname()[:2]
        return address._replace(netloc=f"{login}@{host}:{port}").geturl()

    def lose(self, what: Loss, after: int = 0) -> None:
        """The next request before it arrives, or the next reply after the server has acted; but
        so many of them are spared first."""
        self._loss, self._spared = what, after

    @property
    def lost(self) -> bool:
        """What was to be lost is lost."""
        return self._loss is None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, client: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        address = urlsplit(self.target)
        try:
            reply, server = await asyncio.open_connection(address.hostname, address.port)
            there = asyncio.create_task(self._forward(client, server, "request"))
            back = asyncio.create_task(self._forward(reply, answer, "reply"))
            try:
                await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                there.cancel()
                back.cancel()
                server.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            answer.transport.abort()
            self._tasks.discard(task)

    async def _forward(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, what: Loss
    ) -> None:
        with suppress(OSError):
            while chunk := await source.read(CHUNK):
                if self._loss == what:
                    if not self._spared:
                        self._loss = None
                        return
                    self._spared -= 1
                target.write(chunk)
                await target.drain()


@asynccontextmanager
async def proxy(url: str) -> AsyncIterator[Proxy]:
    made = Proxy(url)
    await made.start()
    try:
        yield made
    finally:
        await made.close()
