"""Ordered consumers: one effect per event, in order per key."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from inbox.consumer.consumer import Consumer
from inbox.redis_inbox import RedisInbox
from outbox import Event


def consumer_of(streams, **options) -> Consumer:
    options = {"group": "billing", "inbox": RedisInbox(streams.redis), **options}
    return Consumer(streams.redis, streams.name, **options)


async def test_each_event_is_handled_once_in_order(streams):
    """And acknowledged; a second look finds nothing."""
    seen = defaultdict(list)
    for seq in range(1, 51):
        for key in "abcdef":
            await streams.add(key, seq)
    for _ in range(2):
        consumer = consumer_of(streams, batch=7)

        @consumer.on("changed", topic="t")
        async def handle(event: Event) -> None:
            await asyncio.sleep(0)
            seen[event.key].append(event.seq)

        await asyncio.wait_for(consumer.drain(), 20)
    assert seen == {key: list(range(1, 51)) for key in "abcdef"}
    assert await streams.pending("billing") == 0
