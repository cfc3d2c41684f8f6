"""RedisInbox around a handler in a loop of your own."""

from __future__ import annotations

import asyncio

import pytest
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from inbox.outcome import Busy, Duplicate, Handled
from inbox.redis_inbox import RedisInbox
from support.daemons import eventually


@pytest.fixture
async def redis(redis_url):
    redis = Redis.from_url(redis_url)
    yield redis
    await redis.aclose()


@pytest.fixture
def group(request) -> str:
    return f"g{abs(hash(request.node.nodeid))}"


async def work() -> str:
    return "billed"


async def fail() -> str:
    raise RuntimeError("no")


async def test_the_handler_runs_once(redis, group):
    """What it returns comes with it; the second time it is a duplicate; other groups are others."""
    box = RedisInbox(redis, group=group)
    assert await box.process("e1", work) == Handled("billed")
    assert await box.process("e1", fail) == Duplicate()
    assert await RedisInbox(redis, group=f"{group}2").process("e1", work) == Handled("billed")


async def test_a_failure_lets_it_run_again(redis, group):
    """At once, and the error is the handler's own."""
    box = RedisInbox(redis, group=group)
    with pytest.raises(RuntimeError, match="no"):
        await box.process("e1", fail)
    assert await box.process("e1", work) == Handled("billed")


async def test_somebody_else_is_at_it(redis, group):
    """Busy says: do not acknowledge, and when to look again at the latest."""
    box = RedisInbox(redis, group=group)
    inside, leave = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        inside.set()
        await leave.wait()

    running = asyncio.create_task(box.process("e1", slow))
    await inside.wait()
    busy = await box.process("e1", fail)
    assert isinstance(busy, Busy)
    assert 0 < busy.retry_after.total_seconds() <= 60
    leave.set()
    await running
    assert await box.process("e1", fail) == Duplicate()


async def test_what_a_dead_process_had_claimed_is_handled_after_the_lease(redis, group):
    """A bare SETNX would have lost it."""
    dying = RedisInbox(redis, group=group, lease=0.2)
    inside = asyncio.Event()

    async def hang() -> None:
        inside.set()
        await asyncio.Event().wait()

    async def dies() -> None:
        claimed = await dying._store.claim(
            dying._key("e1"), fingerprint="", token="dead", lease=0.2
        )
        assert claimed

    await dies()
    box = RedisInbox(redis, group=group)
    assert isinstance(await box.process("e1", work), Busy)

    async def handled() -> bool:
        return await box.process("e1", work) == Handled("billed")

    await eventually(handled)


async def test_a_decorated_handler_tells_whether_to_acknowledge(redis, group):
    box = RedisInbox(redis, group=group)

    @box.once(key=lambda event: event["id"])
    async def handle(event: dict[str, str]) -> str:
        return event["id"]

    assert await handle({"id": "e1"}) == Handled("e1")
    assert await handle({"id": "e1"}) == Duplicate()


def test_sync_code_has_the_same(redis_url, group):
    with SyncRedis.from_url(redis_url) as redis:
        box = RedisInbox(redis, group=group)

        @box.once(key=lambda event: event["id"])
        def handle(event: dict[str, str]) -> str:
            return event["id"]

        assert handle({"id": "e1"}) == Handled("e1")
        assert handle({"id": "e1"}) == Duplicate()
        assert box.process_sync("e2", lambda: 1) == Handled(1)
