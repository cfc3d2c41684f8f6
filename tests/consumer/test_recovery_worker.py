"""`recover_pending_messages`: handles what consumers of other clients have left pending."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from inbox import Recovered, recover_pending_messages
from support.waiting import until

NOW = 0.001
"""Seconds of idleness that every pending entry soon has."""
GROUP = "plain"


class Stream:
    """Read by a consumer that has died."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.key = f"t{uuid4().hex[:10]}"

    async def left_pending(self, count: int, idle: float = NOW) -> list[str]:
        await self.redis.xgroup_create(self.key, GROUP, "0", mkstream=True)
        ids = [await self.redis.xadd(self.key, {"n": str(n)}) for n in range(count)]
        await self.redis.xreadgroup(GROUP, "dead", {self.key: ">"}, count=count)
        await until(lambda: self.idle(count, idle))
        return [entry.decode() for entry in ids]

    async def idle(self, count: int, seconds: float) -> bool:
        found = await self.redis.xpending_range(
            self.key, GROUP, "-", "+", count, idle=int(seconds * 1000)
        )
        return len(found) == count

    async def pending(self) -> dict[str, str]:
        found = await self.redis.xpending_range(self.key, GROUP, "-", "+", 1000)
        return {entry["message_id"].decode(): entry["consumer"].decode() for entry in found}


@pytest.fixture
async def stream(redis_url: str) -> AsyncIterator[Stream]:
    redis = Redis.from_url(redis_url)
    yield Stream(redis)
    await redis.aclose()


async def test_what_is_left_pending_is_handled_in_order_and_acknowledged(stream, caplog):
    """Page by page, with a warning that names each."""
    ids = await stream.left_pending(25)
    seen = []

    async def handle(entry: str, fields: dict[bytes, bytes]) -> None:
        seen.append((entry, int(fields[b"n"])))

    done = await recover_pending_messages(
        stream.redis, stream.key, GROUP, handle, idle=NOW, count=10
    )
    assert done == Recovered(handled=25)
    assert seen == list(zip(ids, range(25), strict=True))
    assert await stream.pending() == {}
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.entry for record in warned] == ids
    assert all(record.idle_seconds > 0 for record in warned)


async def test_what_is_not_idle_for_long_is_left_alone(stream):
    """Its consumer may be at it."""
    ids = await stream.left_pending(1)
    done = await recover_pending_messages(stream.redis, stream.key, GROUP, never)
    assert done == Recovered()
    assert await stream.pending() == {ids[0]: "dead"}


async def never(entry: str, fields: dict[bytes, bytes]) -> None:
    raise AssertionError(f"{entry} was handled")


async def test_what_a_failing_handler_leaves_stays_pending(stream):
    """The others are handled, and it is tried again in the next round; never given up."""
    ids = await stream.left_pending(3)
    tries = []

    async def handle(entry: str, fields: dict[bytes, bytes]) -> None:
        tries.append(entry)
        if entry == ids[1] and tries.count(entry) < 12:
            raise RuntimeError("not yet")

    arguments = (stream.redis, stream.key, GROUP, handle)
    assert await recover_pending_messages(*arguments, idle=NOW) == Recovered(handled=2, failed=1)
    assert await stream.pending() == {ids[1]: "recovery_worker"}
    while await stream.pending():
        await recover_pending_messages(*arguments, idle=NOW)
    assert tries.count(ids[1]) == 12
    assert (tries.count(ids[0]), tries.count(ids[2])) == (1, 1)


async def test_workers_side_by_side_do_not_handle_an_entry_twice(stream):
    """Also if it takes longer than the idle time: it is renewed meanwhile."""
    idle = 0.6
    await stream.left_pending(4, idle)
    running = asyncio.Event()
    finish = asyncio.Event()
    seen = []

    async def slow(entry: str, fields: dict[bytes, bytes]) -> None:
        seen.append(entry)
        running.set()
        await finish.wait()

    async def quick(entry: str, fields: dict[bytes, bytes]) -> None:
        seen.append(entry)

    first = asyncio.create_task(
        recover_pending_messages(stream.redis, stream.key, GROUP, slow, idle=idle, consumer="w1")
    )
    await running.wait()
    others = 0
    for _ in range(5):
        done = await recover_pending_messages(
            stream.redis, stream.key, GROUP, quick, idle=idle, consumer="w2"
        )
        others += done.handled
        await asyncio.sleep(idle / 2)  # in the end, the slow one has taken more than twice as long
    finish.set()
    assert others == 3
    assert await first == Recovered(handled=1)
    assert len(seen) == len(set(seen)) == 4


async def test_an_entry_that_was_deleted_is_counted_and_let_go(stream, caplog):
    """Nobody can handle it any more."""
    ids = await stream.left_pending(2)
    await stream.redis.xdel(stream.key, ids[0])
    seen = []

    async def handle(entry: str, fields: dict[bytes, bytes]) -> None:
        seen.append(entry)

    done = await recover_pending_messages(stream.redis, stream.key, GROUP, handle, idle=NOW)
    assert (done, seen) == (Recovered(handled=1, gone=1), [ids[1]])
    assert await stream.pending() == {}
    assert [r.entry for r in caplog.records if r.levelno == logging.ERROR] == [ids[0]]


async def test_a_worker_that_is_stopped_leaves_its_entry_pending(stream):
    """The next round has it again."""
    ids = await stream.left_pending(1)
    running = asyncio.Event()

    async def hang(entry: str, fields: dict[bytes, bytes]) -> None:
        running.set()
        await asyncio.Event().wait()

    arguments = (stream.redis, stream.key, GROUP)
    worker = asyncio.create_task(recover_pending_messages(*arguments, hang, idle=NOW))
    await running.wait()
    worker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await worker
    assert list(await stream.pending()) == ids


async def test_a_group_that_does_not_exist_is_an_error(stream):
    """Rather than a worker that finds nothing for ever."""
    with pytest.raises(ResponseError, match="NOGROUP"):
        await recover_pending_messages(stream.redis, stream.key, "none", never)
