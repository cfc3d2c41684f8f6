"""A real HTTP server in the test's own loop, and a real client of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

from support import waiting

HOST = "127.0.0.1"


@dataclass
class Call:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read_until(self, end: bytes) -> bytes:
        async with asyncio.timeout(15):
            return await self.reader.readuntil(end)

    def hang_up(self) -> None:
        self.writer.transport.abort()


class Api:
    """A served application."""

    def __init__(self, client: httpx.AsyncClient, port: int) -> None:
        self.client, self._port = client, port

    async def post(self, path: str = "/", key: str | None = "k", **options: Any) -> httpx.Response:
        return await self.client.post(path, headers=_headers(key, options), **options)

    async def call(self) -> Call:
        """A client that can hang up. Sends the same request as `post()` does."""
        reader, writer = await asyncio.open_connection(HOST, self._port)
        writer.write(
            b"POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n"
        )
        await writer.drain()
        return Call(reader, writer)


def _headers(key: str | None, options: dict[str, Any]) -> dict[str, str]:
    given: dict[str, str] = options.pop("headers", {})
    return given if key is None else {"Idempotency-Key": key, **given}


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[Api]:
    listening = socket.create_server((HOST, 0))
    port = listening.getsockname()[1]
    config = uvicorn.Config(app, log_config=None, ws="none", timeout_graceful_shutdown=10)
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    limits = httpx.Limits(max_connections=None)
    try:
        async with httpx.AsyncClient(
            base_url=f"http://{HOST}:{port}", timeout=15, limits=limits, trust_env=False
        ) as client:
            yield Api(client, port)
    finally:
        server.should_exit = True
        async with asyncio.timeout(15):
            await running
        listening.close()


async def until(condition: Callable[[], object]) -> None:
    """Of what this process can see by itself."""

    async def ask() -> object:
        return condition()

    await waiting.until(ask)
