"""A recovery worker for groups of other clients: handles what their consumers have left pending.

A consumer that reads only `>` never sees an entry again, whoever it is handed to. So the worker
runs the handler itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

from redis.asyncio import Redis
from redis.exceptions import RedisError

from inbox.claims.key import Seconds, seconds
from outbox import script
from outbox.script import load

log = logging.getLogger("inbox.recovery")

RECOVERY_WORKER = "recovery_worker"


@dataclass(frozen=True, slots=True)
class Recovered:
    """What came of one round."""

    handled: int = 0
    """The handler returned, and they are acknowledged."""
    failed: int = 0
    """The handler raised; they stay pending, and are tried again when they are idle again."""
    gone: int = 0
    """Trimmed or deleted before anybody handled them: lost."""


async def recover_pending_messages(
    redis: Redis,
    stream_key: str,
    group: str,
    handler: Callable[[str, dict[Any, Any]], Awaitable[object]],
    *,
    idle: Seconds = 300,
    count: int = 100,
    consumer: str = RECOVERY_WORKER,
) -> Recovered:
    """Run `handler(entry id, fields)` on every entry that is pending for longer than `idle`, in
    order, and acknowledge those for which it returns. One round; call it now and then.

    Each entry is claimed right before its handler runs, and renewed while it runs, so several
    workers do not get in each other's way. A group's own consumer that takes longer than `idle`
    loses its entry to the worker: choose `idle` above the slowest handler. An entry may have been
    handled already by a consumer that died before its acknowledgement; wrap the handler with
    `process_event_idempotent` if that matters. Raises NOGROUP if there is no such group.
    """
    milliseconds = max(int(seconds("idle", idle) * 1000), 1)
    worker = _Worker(redis, stream_key, group, consumer, milliseconds)
    handled = failed = gone = 0
    begin = "-"
    while begin:
        page: Any = await redis.xpending_range(
            stream_key, group, begin, "+", count, idle=milliseconds
        )
        for pending in page:
            match await worker.run(pending, handler):
                case "handled":
                    handled += 1
                case "failed":
                    failed += 1
                case "gone":
                    gone += 1
        begin = f"({script.text(page[-1]['message_id'])}" if len(page) == count else ""
    return Recovered(handled, failed, gone)


@dataclass(frozen=True, slots=True)
class _Worker:
    redis: Redis
    stream: str
    group: str
    consumer: str
    idle: int

    async def run(
        self, pending: dict[str, Any], handler: Callable[..., Awaitable[object]]
    ) -> Literal["handled", "failed", "gone", "busy"]:
        entry = script.text(pending["message_id"])
        outcome, *rest = await self._script("recover", self.idle, entry)
        about = {"stream": self.stream, "group": self.group, "entry": entry}
        match script.text(outcome):
            case "busy":
                return "busy"
            case "gone":
                log.error("an entry was trimmed or deleted before it was handled", extra=about)
                return "gone"
        log.warning(
            "a pending entry is handled by the recovery worker",
            extra={
                **about,
                "from": script.text(pending["consumer"]),
                "idle_seconds": pending["time_since_delivered"] / 1000,
            },
        )
        fields = dict(zip(rest[0][::2], rest[0][1::2], strict=True))
        try:
            async with self._renewing(entry):
                await handler(entry, fields)
        except Exception:
            log.exception("the handler failed; the entry stays pending", extra=about)
            return "failed"
        await self.redis.xack(self.stream, self.group, entry)
        return "handled"

    @asynccontextmanager
    async def _renewing(self, entry: str) -> AsyncIterator[None]:
        done = asyncio.Event()

        async def renew() -> None:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.idle / 3000):
                        await done.wait()
                        return
                with suppress(RedisError):
                    if not await self._script("renew", entry):
                        return

        task = asyncio.create_task(renew())
        try:
            yield
        finally:
            done.set()  # not cancelled: a client may swallow that
            await task

    async def _script(self, name: str, *arguments: Any) -> Any:
        whose = (self.group, self.consumer)
        return await script.run(
            self.redis, load("inbox", name), [self.stream], [*whose, *arguments]
        )
