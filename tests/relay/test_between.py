"""Between two steps: topics that overtake, states that go back, half-done detaching."""

from __future__ import annotations

import time
from uuid import uuid4

import pytest
from redis.exceptions import OutOfMemoryError, RedisError

from projector import keys
from projector.checkpoint import older
from projector.embedded import Postgres
from projector.position import Moment, Origin, Position
from projector.sink.redis import RedisSink
from projector.snapshot import Snapshot
from projector.source.batch import Row
from projector.topology import Topic
from support.lanes import client, pipeline
from support.proxy import proxy


def row(number: int) -> Row:
    return Row(
        number, str(uuid4()), "t", "c", "k", number, b"{}", "b", None, None, None, None, "2026"
    )


async def test_a_topic_may_finish_its_window_before_the_lane(pipe):
    """Detached in the middle of a window and freed at once, it waits for the lane to get there."""
    relay, writer = await pipe.loaded(batch=1, pages=2), await pipe.connect()
    key = keys.stream(pipe.name, 0, "bad")
    await pipe.redis.set(key, "x")
    for seq in range(1, 9):
        await pipe.write(writer, "g", seq, topic="good")
        if seq == 2:
            await pipe.write(writer, "b", 1, topic="bad")
    while not relay.state.detached:
        await pipe.turn(relay)
    assert relay.state.main.upto is not None
    await pipe.redis.delete(key)
    for _ in range(4):
        for topic in tuple(relay.state.detached):
            await relay.follow(topic)
    await pipe.settle(relay)
    assert await pipe.seqs("good") == {"g": list(range(1, 9))}
    assert await pipe.seqs("bad") == {"b": [1]}
    assert not relay.state.detached


async def test_out_of_memory_is_no_fault_of_a_new_stream(own_valkey):
    """The server is full, not the stream: the caller is told so, and no topic is detached."""
    async with client(own_valkey.url()) as redis:
        sink = RedisSink(redis, "shop")
        await redis.config_set("maxmemory", 1)
        with pytest.raises(OutOfMemoryError):
            await sink.publish(0, "", "one", [row(1)])


async def test_before_17_an_asynchronous_server_is_made_to_flush(redis_url):
    """With synchronous_commit=off the tiny transaction does not flush either."""
    settings = {"autovacuum": "off", "synchronous_commit": "off", "wal_writer_delay": "10s"}
    with Postgres(settings, version=16) as postgres:
        async with pipeline(postgres.url(), redis_url) as pipe:
            await pipe.write(await pipe.connect(), "k", 1)
            began = time.monotonic()
            await pipe.source.look()
            assert time.monotonic() - began < 1


async def test_declared_groups_join_a_stream_that_a_consumer_made(redis_url):
    """A consumer that was there first (XGROUP CREATE … MKSTREAM) keeps no declared group out."""
    name = f"t{time.time_ns()}"
    async with client(redis_url) as redis:
        stream = keys.stream(name, 0, "t")
        await redis.xgroup_create(stream, "mail", "0", mkstream=True)
        sink = RedisSink(redis, name, {"t": Topic(groups=("billing", "mail"))})
        await sink.publish(0, "", "one", [row(1)])
        groups = await redis.xinfo_groups(stream)
        assert {group["name"] for group in groups} == {b"billing", b"mail"}


async def test_a_crash_while_a_deleted_stream_is_detached_leaves_no_hole(quiet_database, redis_url):
    """What the projector knew of the stream is forgotten together with its detaching, or not."""
    async with proxy(redis_url) as between, pipeline(quiet_database, between.url) as pipe:
        relay, writer = await pipe.loaded(), await pipe.connect()
        await pipe.write(writer, "k", 1)
        await pipe.settle(relay)
        await pipe.redis.delete(keys.stream(pipe.name, 0, "t"))
        await pipe.write(writer, "k", 2)
        between.lose("reply", after=1)  # of what follows the refused publish
        with pytest.raises(RedisError):
            await pipe.turn(relay)
        await pipe.settle(await pipe.loaded())
        assert await pipe.seqs() == {"k": [1, 2]}


async def test_a_lane_that_went_back_is_not_skipped(own_pipe):
    """The survey was made for a state that a save, running meanwhile, found to be gone."""
    pipe = own_pipe
    relay, writer = await pipe.loaded(), await pipe.connect()
    slow = await pipe.begin()
    await pipe.write(slow, "slow", 1)
    await pipe.write(writer, "k", 1)
    await pipe.settle(relay)
    older = {key: await pipe.redis.dump(key) for key in await pipe.redis.keys()}
    await slow.execute("commit")
    await pipe.settle(relay)
    assert await pipe.seqs() == {"k": [1], "slow": [1]}
    for key, value in older.items():  # a failover to a replica that lags
        await pipe.redis.restore(key, 0, value, replace=True)
    await (await pipe.begin()).execute("commit")

    # As Projector._turn and Janitor.checkpoint interleave:
    asked = relay.state.main
    survey = await pipe.source.survey({0: asked}, 1_000)
    assert not survey.lanes
    await relay.save()
    relay.skip(survey.moment, asked)
    await pipe.settle(relay)
    await pipe.write(writer, "k", 2)
    await pipe.settle(relay)
    assert await pipe.seqs() == {"k": [1, 2], "slow": [1]}


def test_the_older_of_two_positions_is_the_one_that_sees_less():
    """A transaction below xmax has ended between them, and its row lies below the head."""
    origin = Origin("s", "t")
    earlier = Position(origin, "e", Moment(Snapshot(95, 100, (95,)), 100), head=7)
    later = Position(origin, "e", Moment(Snapshot(100, 100), 100), head=7)
    assert min((later, earlier), key=older) == earlier
