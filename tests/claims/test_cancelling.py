"""A store's operation that is cancelled ends as cancelled, wherever it was."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from redis.asyncio import Redis

from inbox import RedisStore, new_token


async def test_redis_loses_no_cancellation(redis_url):
    """At each step of the event loop in turn, until the operation is faster."""
    async with Redis.from_url(redis_url) as redis:
        store = RedisStore(redis, prefix=f"{uuid4().hex}:")
        await store.peek("k")  # connected, and the script is known
        for steps in range(30):
            claim = store.claim("k", fingerprint="", token=new_token(), lease=1)
            task = asyncio.create_task(claim)
            for _ in range(steps):
                await asyncio.sleep(0)
            if task.cancel():
                await asyncio.wait({task})
                assert task.cancelled(), steps
