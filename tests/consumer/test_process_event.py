"""`process_event_idempotent`: the handler runs once, and a process that dies loses nothing."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from inbox import process_event_idempotent
from inbox.outcome import Busy, Duplicate, Handled
from support.waiting import until

DIES = """
import asyncio, os, sys
from redis.asyncio import Redis
from inbox import process_event_idempotent

async def bare(redis, event_id, handler):
    if await redis.set(f"event:processed:{event_id}", "1", nx=True, ex=7 * 86400):
        await handler()

async def ours(redis, event_id, handler):
    await process_event_idempotent(redis, event_id, handler, lease=0.2)

async def die():
    os._exit(9)

asyncio.run(globals()[sys.argv[1]](Redis.from_url(sys.argv[2]), sys.argv[3], die))
"""


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    redis = Redis.from_url(redis_url)
    yield redis
    await redis.aclose()


class Effect:
    def __init__(self) -> None:
        self.count = 0

    async def __call__(self) -> int:
        self.count += 1
        return self.count


async def test_the_handler_runs_once(redis):
    """Its result is given to the first only."""
    effect, event_id = Effect(), uuid4()
    assert await process_event_idempotent(redis, event_id, effect) == Handled(1)
    assert await process_event_idempotent(redis, event_id, effect) == Duplicate()
    assert await process_event_idempotent(redis, event_id, effect, group="mail") == Handled(2)


async def test_a_handler_that_fails_may_run_again(redis):
    """What it raised is raised."""

    async def fail() -> None:
        raise RuntimeError("no")

    effect, event_id = Effect(), uuid4()
    with pytest.raises(RuntimeError):
        await process_event_idempotent(redis, event_id, fail)
    assert await process_event_idempotent(redis, event_id, effect) == Handled(1)


async def test_while_it_runs_elsewhere_nobody_else_runs_it(redis):
    """`Busy`, which is no reason to acknowledge."""
    event_id, running, finish = uuid4(), asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        running.set()
        await finish.wait()

    first = asyncio.create_task(process_event_idempotent(redis, event_id, slow))
    await running.wait()
    assert isinstance(await process_event_idempotent(redis, event_id, Effect()), Busy)
    finish.set()
    assert isinstance(await first, Handled)


def die(how: str, redis_url: str, event_id: str) -> None:
    """Another process, which is gone in the middle of its handler."""
    done = subprocess.run(
        [sys.executable, "-c", DIES, how, redis_url, event_id], env=os.environ, timeout=30
    )
    assert done.returncode == 9


async def test_a_process_that_dies_in_the_handler_does_not_lose_the_event(redis, redis_url):
    """Once its lease is over, the next one handles it. A bare SETNX says for seven days that it was
    handled."""
    event_id, effect = uuid4().hex, Effect()
    await asyncio.to_thread(die, "ours", redis_url, event_id)

    async def free() -> bool:
        return await process_event_idempotent(redis, event_id, effect) == Handled(1)

    await until(free)
    assert effect.count == 1

    await asyncio.to_thread(die, "bare", redis_url, event_id)
    assert not await redis.set(f"event:processed:{event_id}", "1", nx=True)  # skipped: it is lost
    assert await redis.ttl(f"event:processed:{event_id}") > 6 * 86400
