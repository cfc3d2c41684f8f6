"""One bad stream stops its own topic; the lane goes on, and the topic catches up in order."""

from __future__ import annotations

from collections import defaultdict

import pytest

from projector import keys
from projector.relay import Relay
from projector.sink.redis import Stream
from support.lanes import Pipeline

LAST_ID = "18446744073709551615-18446744073709551615"


class Scene:
    """A lane with good topics and a bad one, whose stream can be blocked and freed."""

    def __init__(self, pipe: Pipeline, relay: Relay) -> None:
        self.pipe = pipe
        self.relay = relay
        self.bad = keys.stream(pipe.name, 0, "bad")
        self.last: dict[str, int] = defaultdict(int)

    async def write(self, *topics: str) -> None:
        connection = await self.pipe.connect()
        for topic in topics:
            self.last[topic] += 1
            await self.pipe.write(connection, topic, self.last[topic], topic)
        await connection.close()

    async def turns(self) -> None:
        """The lane alone, until it stands still: detached topics are not tried."""
        before = None
        while before != (before := str(self.relay.state)):
            await self.pipe.turn(self.relay)

    async def settle(self) -> None:
        await self.pipe.settle(self.relay)

    async def complete(self, *topics: str) -> bool:
        """Each topic's events are in its stream, once and in order."""
        expected = {topic: {topic: list(range(1, self.last[topic] + 1))} for topic in topics}
        return {topic: await self.pipe.seqs(topic) for topic in topics} == expected

    async def block(self, how: str) -> None:
        if how == "type":
            await self.pipe.redis.set(self.bad, "x")
            return
        await self.write("bad")
        await self.settle()
        self.pipe.topology["bad"] = Stream(high_water=1)

    async def free(self, how: str) -> None:
        if how == "type":
            await self.pipe.redis.delete(self.bad)
        else:
            self.pipe.topology["bad"] = Stream(high_water=1000)


async def scene(pipe: Pipeline, **options: int) -> Scene:
    return Scene(pipe, await pipe.loaded(**options))


@pytest.mark.parametrize("batch", [1, 2, 1000])
@pytest.mark.parametrize("how", ["type", "full"])
async def test_a_bad_stream_stops_its_topic_only(pipe, how, batch):
    """The lane's other topics flow meanwhile; when the stream is good again nothing is missing."""
    on = await scene(pipe, batch=batch)
    await on.block(how)
    for _ in range(3):
        await on.write("good", "bad", "bad", "fine")
        await on.turns()
        assert set(on.relay.state.detached) == {"bad"}
        assert await on.complete("good", "fine")
    await on.free(how)
    await on.write("bad", "good")
    await on.settle()
    assert not on.relay.state.detached
    await on.write("good", "bad", "fine")
    await on.settle()
    assert await on.complete("good", "bad", "fine")


@pytest.mark.parametrize("last", ["good", "bad"])
async def test_a_topic_rejoins_without_a_repetition(pipe, last):
    """Whichever wrote the highest id, the lane's or the topic's, neither is published again."""
    on = await scene(pipe)
    await on.block("type")
    await on.write("bad", "good", last)
    await on.turns()
    await on.free("type")
    await on.settle()
    assert not on.relay.state.detached
    for topics in (["good"], ["bad"], ["good", "bad"]):
        await on.write(*topics)
        await on.settle()
    assert await on.complete("good", "bad")


async def test_two_topics_are_detached_and_rejoin_one_by_one(pipe):
    """Each has a position of its own."""
    on = await scene(pipe)
    worse = keys.stream(pipe.name, 0, "worse")
    await pipe.redis.set(worse, "x")
    await on.block("type")
    await on.write("bad", "worse", "good")
    await on.turns()
    await on.write("worse", "bad", "good")
    await on.turns()
    assert set(on.relay.state.detached) == {"bad", "worse"}
    assert await on.complete("good")
    await on.free("type")
    while "bad" in on.relay.state.detached:
        await on.relay.follow("bad")
        await on.turns()
    assert await on.complete("good", "bad")
    await on.write("bad", "good", "worse")
    await on.turns()
    await pipe.redis.delete(worse)
    await on.settle()
    assert not on.relay.state.detached
    assert await on.complete("good", "bad", "worse")


async def test_transactions_open_while_a_topic_is_away(pipe):
    """Open when it was detached, or when it rejoined: their events come, in both topics, once."""
    on = await scene(pipe, batch=2)
    first = await pipe.begin()
    for topic in ("good", "bad"):
        await pipe.write(first, "first", 1, topic)
    await on.block("full")
    await on.write("bad", "good")
    await on.turns()
    second = await pipe.begin()
    for topic in ("bad", "good"):
        await pipe.write(second, "second", 1, topic)
    await first.execute("commit")
    await on.write("good", "bad")
    await on.turns()
    await on.free("full")
    await on.settle()
    assert not on.relay.state.detached
    await second.execute("commit")
    await on.write("good", "bad")
    await on.settle()
    for topic in ("good", "bad"):
        mine = {topic: list(range(1, on.last[topic] + 1))}
        assert await pipe.seqs(topic) == {**mine, "first": [1], "second": [1]}


async def test_a_detached_topic_outlives_its_relay(pipe):
    """Where it stands is stored with the lane: the next relay goes on from there."""
    on = await scene(pipe)
    await on.block("type")
    await on.write("bad", "good")
    await on.turns()
    on.relay = await pipe.loaded()
    assert set(on.relay.state.detached) == {"bad"}
    await on.write("good", "bad")
    await on.turns()
    await on.free("type")
    on.relay = await pipe.loaded()
    await on.settle()
    assert await on.complete("good", "bad")


async def test_a_stream_out_of_ids_is_detached_without_half_a_batch(pipe):
    """The error comes in the middle of the batch; the others are published once all the same."""
    on = await scene(pipe)
    await pipe.redis.xadd(on.bad, {"subject": "x", "sequence": 0}, id=LAST_ID)
    for _ in range(2):
        await on.write("good", "fine", "bad", "good")
        await on.turns()
    assert set(on.relay.state.detached) == {"bad"}
    assert await on.complete("good", "fine")
    assert await pipe.seqs("bad") == {"x": [0]}
