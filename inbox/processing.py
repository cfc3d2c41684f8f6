"""Wrapping a handler, in one call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import redis
import redis.asyncio

from inbox.claims.key import Seconds
from inbox.outcome import Processed
from inbox.redis_inbox import LEASE, WINDOW, RedisInbox

T = TypeVar("T")


async def process_event_idempotent(
    redis: redis.Redis | redis.asyncio.Redis,
    event_id: object,
    handler: Callable[[], Awaitable[T]],
    *,
    group: str = "",
    window: Seconds = WINDOW,
    lease: Seconds = LEASE,
) -> Processed[T]:
    """`RedisInbox(redis, group).process(event_id, handler)`: run the handler unless the event was
    handled before. Acknowledge on `Handled` and `Duplicate`; `Busy` means: not yet.

    A bare SETNX would lose the event if the process died before the handler was done. Here the key
    says that somebody is at it until then, and another may try once the lease is over.
    """
    return await RedisInbox(redis, group, window=window, lease=lease).process(event_id, handler)
