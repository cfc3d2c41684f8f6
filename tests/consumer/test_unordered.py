"""Unordered consumers compete for all entries; and dedup by seq."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from inbox.consumer.consumer import Consumer
from inbox.consumer.retry import Retry
from inbox.redis_inbox import RedisInbox
from outbox import Event, layout
from outbox.keys import lane_of
from support.daemons import eventually

QUICK = Retry(attempts=2, first=0.001, cap=0.002)


def consumer_of(streams, **options) -> Consumer:
    options = {"group": "billing", "inbox": RedisInbox(streams.redis), "retry": QUICK, **options}
    return Consumer(streams.redis, streams.name, **options)


async def test_two_unordered_consumers_share_one_key(streams):
    """Each event once, by whoever comes first; a slow one holds nobody up."""
    seen, slow = [], asyncio.Event()
    for seq in range(1, 101):
        await streams.add("k", seq)
    consumers = [consumer_of(streams, ordered=False, batch=10) for _ in range(2)]
    for consumer in consumers:

        @consumer.on("changed", topic="t")
        async def handle(event: Event) -> None:
            if event.seq == 1:
                await slow.wait()
            seen.append(event.seq)

    running = [asyncio.create_task(consumer.run()) for consumer in consumers]
    await eventually(lambda: has(seen, 99))
    slow.set()
    await eventually(lambda: has(seen, 100))
    for consumer in consumers:
        consumer.stop()
    await asyncio.wait_for(asyncio.gather(*running), 10)
    assert sorted(seen) == list(range(1, 101))
    assert await streams.pending("billing") == 0


async def has(seen: list[int], count: int) -> bool:
    return len(seen) == count


async def test_what_a_dead_consumer_left_is_taken_over(streams):
    """After the idle time, with XAUTOCLAIM."""
    seen = []
    for seq in range(1, 4):
        await streams.add("k", seq)
    await streams.redis.xgroup_create(streams.stream("k"), "billing", "0")
    await streams.redis.xreadgroup("billing", "dead", {streams.stream("k"): ">"})
    consumer = consumer_of(streams, ordered=False, pending_idle=0.2)

    @consumer.on("changed", topic="t")
    async def handle(event: Event) -> None:
        seen.append(event.seq)

    running = asyncio.create_task(consumer.run())
    await eventually(lambda: has(seen, 3))
    consumer.stop()
    await asyncio.wait_for(running, 10)
    assert await streams.pending("billing") == 0


async def test_a_slow_handler_is_not_run_twice(streams):
    """Others take its entry over, but not its claim, which is renewed."""
    begun, finish = [], asyncio.Event()
    await streams.add("k", 1)
    options = {"ordered": False, "pending_idle": 0.1, "claim_lease": 0.3}
    consumers = [consumer_of(streams, **options) for _ in range(2)]
    for consumer in consumers:

        @consumer.on("changed", topic="t")
        async def handle(event: Event) -> None:
            begun.append(event.seq)
            await finish.wait()

    running = [asyncio.create_task(consumer.run()) for consumer in consumers]
    await eventually(lambda: has(begun, 1))
    await asyncio.sleep(1)  # several leases and idle times
    assert begun == [1]
    finish.set()
    await eventually(lambda: settled(streams))
    for consumer in consumers:
        consumer.stop()
    await asyncio.wait_for(asyncio.gather(*running), 10)
    assert begun == [1]


async def settled(streams) -> bool:
    return await streams.pending("billing") == 0


async def test_a_dead_letter_of_an_unordered_consumer_parks_nothing(streams):
    seen = []
    for seq in (1, 2):
        await streams.add("k", seq)
    consumer = consumer_of(streams, ordered=False)

    @consumer.on("changed", topic="t")
    async def handle(event: Event) -> None:
        if event.seq == 1:
            raise RuntimeError("no")
        seen.append(event.seq)

    await asyncio.wait_for(consumer.drain(), 20)
    assert seen == [2]
    lane = lane_of("k", streams.lanes)
    assert await streams.redis.zcard(layout.dead(streams.name, lane, "billing")) == 1
    assert not await streams.redis.exists(layout.parked(streams.name, lane, "billing"))


async def test_dedup_by_seq_keeps_one_number_a_key(streams):
    """Old and repeated numbers are skipped; no record is left behind."""
    seen = defaultdict(list)
    for seq in (1, 2, 2, 1, 3):
        for key in "ab":
            await streams.add(key, seq)
    for _ in range(2):
        consumer = consumer_of(streams, dedup="seq")

        @consumer.on("changed", topic="t")
        async def handle(event: Event) -> None:
            seen[event.key].append(event.seq)

        await asyncio.wait_for(consumer.drain(), 20)
        await streams.add("a", 3)
    assert seen == {"a": [1, 2, 3], "b": [1, 2, 3]}
    left = [key async for key in streams.redis.scan_iter(f"*{streams.name}*")]
    assert not [key for key in left if b"@inbox" in key]


async def test_a_hole_parks_its_key(streams):
    """What is missing may come yet; other keys go on."""
    seen = []
    for seq in (1, 3):
        await streams.add("a", seq)
    await streams.add("b", 1)
    consumer = consumer_of(streams, dedup="seq")

    @consumer.on("changed", topic="t")
    async def handle(event: Event) -> None:
        seen.append((event.key, event.seq))

    await asyncio.wait_for(consumer.drain(), 20)
    assert sorted(seen) == [("a", 1), ("b", 1)]
    lane = lane_of("a", streams.lanes)
    assert await streams.redis.hgetall(layout.parked(streams.name, lane, "billing")) == {
        b"t:a": b"1"
    }


def test_dedup_by_seq_needs_order(streams):
    with pytest.raises(ValueError, match="ordered"):
        consumer_of(streams, dedup="seq", ordered=False)
