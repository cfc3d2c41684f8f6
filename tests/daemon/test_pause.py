"""Topics that are held back by hand."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count

from projector import keys
from support.daemons import eventually, projector, same
from support.house import command


async def test_a_paused_topic_waits_and_the_others_go_on(house, redis_url):
    """Also over a restart of the projector; then it catches up in order."""
    pipe, options = house.pipe, ("--lease", "0.3")
    with projector(pipe, redis_url, *options):
        await pipe.write(house.connection, "k", 1, "paused")
        await eventually(lambda: same(pipe, {"k": [1]}, "paused"))
        assert "paused topic" in command(house, redis_url, "pause", "paused")
        await eventually(partial(learned, house, "paused", count()))
    with projector(pipe, redis_url, *options):
        for seq in (2, 3):
            await pipe.write(house.connection, "k", seq, "paused")
            await pipe.write(house.connection, "k", seq, "other")
        await eventually(lambda: same(pipe, {"k": [2, 3]}, "other"))
        assert await same(pipe, {"k": [1]}, "paused")
        assert "paused by hand: paused" in command(house, redis_url, "status")
        assert "resumed" in command(house, redis_url, "resume", "paused")
        await eventually(lambda: same(pipe, {"k": [1, 2, 3]}, "paused"))
    assert "was not paused" in command(house, redis_url, "resume", "paused")


async def learned(house, topic: str, ticks: Iterator[int]) -> bool:
    """The lane goes on without the topic, and says so with its next event."""
    await house.pipe.write(house.connection, "tick", next(ticks), "ticks")
    return topic.encode() in await house.pipe.redis.get(keys.position(house.pipe.name, 0))
