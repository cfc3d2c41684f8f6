"""Requests and replies that get lost: nothing is, and nothing is handled twice."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from redis.asyncio import Redis

from inbox.consumer.consumer import Consumer
from inbox.consumer.retry import Retry
from inbox.redis_inbox import RedisInbox
from outbox import Event
from support.daemons import eventually
from support.proxy import proxy


@pytest.mark.parametrize("what", ["request", "reply"])
@pytest.mark.parametrize("after", range(2, 34, 4))
async def test_one_lost_at_any_moment(streams, redis_url, what, after):
    """Whichever command it was: each event is handled once, in order, and acknowledged."""
    seen = defaultdict(list)
    for seq in range(1, 21):
        for key in "abc":
            await streams.add(key, seq)
    async with proxy(redis_url) as between:
        redis = Redis.from_url(between.url)
        consumer = Consumer(
            redis,
            streams.name,
            group="billing",
            inbox=RedisInbox(redis),
            batch=5,
            retry=Retry(first=0.001),
            lane_lease=2,
        )

        @consumer.on("changed", topic="t")
        async def handle(event: Event) -> None:
            await asyncio.sleep(0)
            seen[event.key].append(event.seq)

        between.lose(what, after)
        running = asyncio.create_task(consumer.run())
        await eventually(lambda: settled(streams, seen))
        assert between.lost
        consumer.stop()
        await asyncio.wait_for(running, 30)
        await redis.aclose()
    assert seen == {key: list(range(1, 21)) for key in "abc"}


async def settled(streams, seen) -> bool:
    handled = sum(len(seqs) for seqs in seen.values())
    return handled >= 60 and await streams.pending("billing") == 0
