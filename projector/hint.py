"""The hint: a connection that listens, so that a commit ends the wait between two turns.

Never more than a hint. Polling finds everything without it; whatever goes wrong here is told once,
tried again in a while, and disturbs nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine
from tenacity import AsyncRetrying, retry_if_exception_type

from projector import trouble
from projector.errors import ProjectorError
from projector.setback import WAIT

log = logging.getLogger("projector.hint")

PING = 10.0
"""Seconds between two signs of life of the listening connection, and to wait for one: a peer that
vanished without a word would else leave us listening to nobody."""
STEADY = 5.0
"""Seconds after which a connection was a good one; its loss begins a new outage."""


class HintLost(ProjectorError):
    """The listening connection was closed."""

    def __init__(self) -> None:
        super().__init__("the server closed the connection that listens")


class Hint:
    """What ends a wait early. Whoever gives it while nobody waits ends the next wait at once."""

    def __init__(self, engine: AsyncEngine, channel: str, ping: float = PING) -> None:
        self._engine = engine
        self._channel = channel
        self._ping = ping
        self._given = asyncio.Event()
        self._lost = False

    def give(self, *_: object) -> None:
        self._given.set()

    async def wait(self, seconds: float) -> None:
        """Until a hint is given, at most so long. One that was given since the last wait counts:
        its commit may be younger than the turn in between."""
        await _set(self._given, seconds)
        self._given.clear()

    async def listen(self) -> None:
        """Give a hint for each notification, until cancelled. PostgreSQL only."""
        while True:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(Exception),
                wait=WAIT,
            ):
                with attempt:
                    await self._listen_until_lost()

    async def _listen_until_lost(self) -> None:
        began = time.monotonic()
        try:
            await self._listen()
        except Exception as problem:
            if not self._lost:
                log.warning("no wake-up hints, polling goes on: %s", trouble.told(problem))
            self._lost = True
            if time.monotonic() - began < STEADY:
                raise

    async def _listen(self) -> None:
        async with self._engine.connect() as connection:
            raw: Any = (await connection.get_raw_connection()).driver_connection
            closed = asyncio.Event()
            try:
                raw.add_termination_listener(lambda _: closed.set())
                await raw.add_listener(self._channel, self.give)
                if self._lost:
                    log.info("wake-up hints are back")
                self._lost = False
                while not await _set(closed, self._ping):
                    await raw.fetchval("select 1", timeout=self._ping)
                raise HintLost
            finally:
                # Not back to the pool, where it would go on listening.
                raw.terminate()
                await connection.invalidate()


async def _set(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event is set within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
