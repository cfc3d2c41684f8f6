"""One bad stream stops its own topic; the lane goes on, and the topic catches up in order."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from projector import keys
from projector.relay import Relay
from projector.topology import Topic
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
        self.pipe.topology["bad"] = Topic(high_water=1)

    async def free(self, how: str) -> None:
        if how == "type":
            await self.pipe.redis.delete(self.bad)
        else:
            self.pipe.topology["bad"] = Topic(high_water=1000)


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


@pytest.mark.parametrize("how", ["type", "full"])
async def test_a_topic_is_tried_in_vain_and_keeps_its_place(pipe, how):
    """However often, the lane goes on meanwhile, and nothing of the topic is lost."""
    on = await scene(pipe)
    await on.block(how)
    for _ in range(3):
        await on.write("bad", "good")
        for _ in range(3):
            await pipe.turn(on.relay)
            for topic in tuple(on.relay.state.detached):
                await on.relay.follow(topic)
        assert set(on.relay.state.detached) == {"bad"}
        assert await on.complete("good")
    await on.free(how)
    await on.write("bad", "good")
    await on.settle()
    assert not on.relay.state.detached
    assert await on.complete("good", "bad")


@pytest.mark.parametrize("how", ["deleted", "older"])
async def test_a_lost_stream_is_published_again(pipe, how):
    """A stream that was deleted, or restored from an old copy, is filled again from the database;
    the lane's other streams show nothing of it."""
    on = await scene(pipe, batch=2)
    await on.write("bad", "good")
    await on.settle()
    copy = await pipe.redis.dump(on.bad)
    await on.write("bad", "good")
    await on.settle()
    await pipe.redis.delete(on.bad)
    if how == "older":
        await pipe.redis.restore(on.bad, 0, copy)
    await on.write("bad", "good", "bad")
    await on.settle()
    assert not on.relay.state.detached
    await on.write("bad", "good")
    await on.settle()
    assert await on.complete("good")
    survived = [1] if how == "older" else []
    assert await pipe.seqs("bad") == {"bad": [*survived, 1, 2, 3, 4, 5]}


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


TOPICS = ("a", "b", "c")


@pytest.mark.parametrize("losing", [False, True])
async def test_topics_come_and_go(pipe, losing):
    """However topics are blocked, tried, freed or emptied, under open transactions and a relay that
    forgets: each event comes, in order; and once, unless its stream was deleted."""
    chance = random.Random(f"topics-{losing}")
    relay = await pipe.loaded(batch=2, pages=2)
    last = {(topic, key): 0 for topic in TOPICS for key in "xyz"}
    writing: list[tuple[Any, list[tuple[str, str]]]] = []
    emptied = set()
    for _ in range(150):
        what = chance.random()
        if what < 0.35:
            locked = [held for _, holds in writing for held in holds]
            free = [counter for counter in last if counter not in locked]
            picked = chance.sample(free, min(len(free), chance.randint(1, 3)))
            writing.append((await pipe.begin(), picked))
            for topic, key in picked:
                last[topic, key] += 1
                await pipe.write(writing[-1][0], key, last[topic, key], topic)
        elif what < 0.65 and writing:
            connection, _ = writing.pop(chance.randrange(len(writing)))
            await connection.execute("commit")
            await connection.close()
        elif what < 0.75:
            pipe.topology[chance.choice(TOPICS)] = Topic(high_water=chance.choice([1, 0]))
        elif what < 0.8:
            relay = await pipe.loaded(batch=chance.randint(1, 3), pages=2)
        elif what < 0.82 and losing:
            emptied.add(topic := chance.choice(TOPICS))
            await pipe.redis.delete(keys.stream(pipe.name, 0, topic))
        await pipe.turn(relay)
        for topic in tuple(relay.state.detached):
            await relay.follow(topic)
    for connection, _ in writing:
        await connection.execute("commit")
    pipe.topology.clear()
    for topic, key in last:  # what is lost is noticed at the next publish
        last[topic, key] += 1
        await pipe.write(await pipe.connect(), key, last[topic, key], topic)
    await pipe.settle(relay)
    assert not relay.state.detached
    assert bool(emptied) == losing
    for topic in TOPICS:
        found = await pipe.seqs(topic)
        if topic in emptied:
            found = {key: list(dict.fromkeys(seqs)) for key, seqs in found.items()}
        assert found == {k: list(range(1, n + 1)) for (t, k), n in last.items() if t == topic}
