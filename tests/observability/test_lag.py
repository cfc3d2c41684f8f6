"""How far a group is behind, on a real server: what can still be delivered, also after trims."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from projector import keys
from projector.status.lag import true_lag
from projector.status.redis import Stock, Stored, look_at_streams
from projector.status.report import Group
from support.lanes import client


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    made = client(redis_url)
    yield made
    await made.aclose()


class Filled:
    """A stream of 100 entries, and a group that has read none of them."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.key = keys.stream(f"t{uuid4().hex[:10]}", 0, "orders")

    async def start(self) -> None:
        await self.redis.xgroup_create(self.key, "billing", "0", mkstream=True)
        await self.add(100)

    async def add(self, count: int) -> None:
        async with self.redis.pipeline() as pipe:
            for _ in range(count):
                pipe.xadd(self.key, {"a": "b"})
            self.ids = await pipe.execute()

    async def read(self, count: int, group: str = "billing") -> list[Any]:
        read = {self.key: ">"}
        reply = await self.redis.xreadgroup(group, "one", read, count=count)
        return list(reply.values() if isinstance(reply, dict) else reply)

    async def group(self, counted: int = 1000) -> Group:
        stock = Stock((), {0: Stored(streams=(self.key,))})
        (stream,) = await look_at_streams(self.redis, stock, counted)
        (group,) = stream.groups
        return group

    async def lag(self, counted: int = 1000) -> tuple[int, bool]:
        group = await self.group(counted)
        return group.lag, group.lag_exact


@pytest.fixture
async def filled(redis: Redis) -> Filled:
    made = Filled(redis)
    await made.start()
    return made


async def test_a_group_that_read_nothing_lags_by_all(filled):
    """Every entry is to be delivered."""
    assert await filled.lag() == (100, True)


async def test_a_group_that_read_some_lags_by_the_rest(filled):
    """And one that read all lags by none."""
    await filled.read(10)
    assert await filled.lag() == (90, True)
    await filled.read(100)
    assert await filled.lag() == (0, True)


async def test_trimmed_entries_are_no_lag(filled):
    """They will never be delivered; the server's own lag counts them."""
    await filled.read(10)
    await filled.redis.xtrim(filled.key, maxlen=20, approximate=False)
    (info,) = await filled.redis.xinfo_groups(filled.key)
    assert info.get("lag", 90) == 90  # Redis before 7 does not tell
    assert await filled.lag() == (20, True)
    await filled.read(5)
    assert await filled.lag() == (15, True)


async def test_a_group_behind_all_that_is_left_lags_by_that(filled):
    """Nothing need be counted for it, however long the stream is."""
    await filled.read(10)
    await filled.redis.xtrim(filled.key, maxlen=20, approximate=False)
    assert await filled.lag(counted=1) == (20, True)


async def test_trimming_what_was_read_changes_nothing(filled):
    """The usual case."""
    await filled.read(50)
    await filled.redis.xtrim(filled.key, maxlen=60, approximate=False)
    assert await filled.lag() == (50, True)


async def test_deleted_entries_are_no_lag(filled):
    """Wherever they lay."""
    await filled.read(10)
    await filled.redis.xdel(filled.key, *filled.ids[50:60], filled.ids[-1])
    assert await filled.lag() == (79, True)


async def test_an_emptied_stream_has_no_lag(filled):
    """There is nothing to deliver."""
    await filled.redis.xtrim(filled.key, maxlen=0, approximate=False)
    assert await filled.lag() == (0, True)


async def test_a_group_made_in_the_middle_lags_by_what_follows(filled):
    """The server itself does not know."""
    await filled.redis.xgroup_setid(filled.key, "billing", filled.ids[29])
    (info,) = await filled.redis.xinfo_groups(filled.key)
    assert info.get("lag") is None
    assert await filled.lag() == (70, True)


async def test_beyond_what_is_counted_it_is_an_estimate(filled):
    """Never more than there is, nor less than was counted."""
    await filled.read(10)
    await filled.redis.xdel(filled.key, filled.ids[50])
    lag, exact = await filled.lag(counted=30)
    assert not exact
    assert 30 <= lag <= 98
    await filled.read(58)
    assert await filled.lag(counted=30) == (30, False)
    await filled.read(2)
    assert await filled.lag(counted=30) == (29, True)


async def test_large_entries_are_counted_by_few(filled):
    """So that asking costs the server little, whatever lies in the stream."""
    await filled.read(100)
    await filled.redis.xtrim(filled.key, maxlen=1, approximate=False)
    for _ in range(15):
        await filled.redis.xadd(filled.key, {"data": "x" * 100_000})
    assert await filled.lag() == (15, False)


async def test_pending_entries_and_the_oldest_of_them(filled):
    """Delivered, not acknowledged: how many, which is first, and for how long it waits."""
    read = await filled.read(10)
    ids = [entry[0] for entry in _entries(read)]
    await filled.redis.xack(filled.key, "billing", *ids[:3])
    group = await filled.group()
    assert (group.pending, group.consumers) == (7, 1)
    assert group.oldest_pending == ids[3].decode()
    assert group.oldest_pending_idle is not None
    assert timedelta(0) <= group.oldest_pending_idle < timedelta(seconds=30)


def _entries(reply: list[Any]) -> list[Any]:
    (found,) = reply
    while len(found) == 1 or isinstance(found[0], bytes):
        found = found[-1]
    return list(found)


@pytest.mark.parametrize(
    ("delivered", "expected"), [("1000-0", 900), ("5500-0", 500), ("9999-0", 30)]
)
def test_without_counters_time_tells(delivered, expected):
    """Redis before 7 counts nothing: the ids' times are all there is."""
    stream = {"length": 1000, "first": "1000-0", "last": "10000-0"}
    group = {"delivered": delivered, "counted": 30, "complete": False}
    lag, exact = true_lag(stream, group)
    assert not exact
    assert lag == pytest.approx(expected, abs=100)
