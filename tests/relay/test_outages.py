"""Redis loses requests, replies, scripts, memory or data; the streams do not show it."""

from __future__ import annotations

import asyncio

import pytest
from redis.exceptions import OutOfMemoryError, RedisError

from support.lanes import Pipeline, pipeline
from support.proxy import proxy
from support.waiting import until
from support.writers import Writers

DURABLE = pytest.mark.parametrize(
    "own_valkey", [{"appendonly": "yes", "appendfsync": "everysec"}], indirect=True, ids=["aof"]
)


async def write(pipe: Pipeline, *seqs: int, key: str = "k") -> None:
    connection = await pipe.connect()
    for seq in seqs:
        await pipe.write(connection, key, seq)
    await connection.close()


@pytest.mark.parametrize("reloads", [False, True])
@pytest.mark.parametrize("lost", ["request", "reply"])
async def test_a_broken_connection_doubles_and_loses_nothing(
    quiet_database, redis_url, lost, reloads
):
    """The script ran, or did not, and nobody was told: the lane's state knows."""
    async with proxy(redis_url) as between, pipeline(quiet_database, between.url) as pipe:
        relay = await pipe.loaded(batch=2)
        await write(pipe, 1)
        await pipe.settle(relay)
        await write(pipe, 2, 3, 4, 5, 6)
        between.lose(lost)
        with pytest.raises(RedisError):
            await pipe.turn(relay)
        assert between.lost
        found = await pipe.seqs()
        assert found == {"k": [1] if lost == "request" else [1, 2, 3]}
        if reloads:
            await relay.load()
        await pipe.settle(relay)
        assert await pipe.seqs() == {"k": [1, 2, 3, 4, 5, 6]}


async def test_a_forgotten_script_costs_no_event(own_pipe, own_valkey):
    """SCRIPT FLUSH between two turns of a lane that is at work."""
    relay = await own_pipe.loaded(batch=2)
    for number in range(3):
        await write(own_pipe, 3 * number + 1, 3 * number + 2, 3 * number + 3)
        own_valkey.execute("SCRIPT", "FLUSH")
        await own_pipe.settle(relay)
    assert await own_pipe.seqs() == {"k": list(range(1, 10))}


async def test_a_full_memory_is_waited_out(own_pipe, own_valkey):
    """At the limit nothing moves; after relief everything comes once, new streams too."""
    relay = await own_pipe.loaded(batch=2)
    await write(own_pipe, 1)
    await own_pipe.settle(relay)
    own_valkey.execute("CONFIG", "SET", "maxmemory", 1)
    await write(own_pipe, 2, 3, 4)
    await own_pipe.write(await own_pipe.connect(), "k", 1, topic="new")
    for _ in range(3):
        with pytest.raises(OutOfMemoryError):
            await own_pipe.turn(relay)
    assert await own_pipe.seqs() == {"k": [1]}
    own_valkey.execute("CONFIG", "SET", "maxmemory", 0)
    await own_pipe.settle(relay)
    assert not relay.state.detached
    assert await own_pipe.seqs() == {"k": [1, 2, 3, 4]}
    assert await own_pipe.seqs("new") == {"k": [1]}


@pytest.mark.parametrize("idle", [False, True])
async def test_an_emptied_redis_is_filled_again(own_pipe, own_valkey, idle):
    """FLUSHALL: everything is published again from the start and in order, also if nothing new
    is written."""
    relay = await own_pipe.loaded(batch=2)
    slow = await own_pipe.begin()
    await own_pipe.write(slow, "slow", 1)
    await write(own_pipe, 1, 2, 3)
    await own_pipe.settle(relay)
    own_valkey.execute("FLUSHALL")
    if idle:
        await relay.save()
    else:
        await write(own_pipe, 4)
    await own_pipe.settle(relay)
    assert await own_pipe.seqs() == {"k": [1, 2, 3] if idle else [1, 2, 3, 4]}
    await slow.execute("commit")
    await own_pipe.settle(relay)
    assert (await own_pipe.seqs())["slow"] == [1]


@DURABLE
async def test_a_torn_file_tears_no_batch(own_pipe, own_valkey):
    """Killed, with any part of its file's end missing, Valkey comes back with streams and state
    that agree; the rest is published again."""
    relay = await own_pipe.loaded(batch=2)
    written = 0
    for cut in (1, 40, 200, 500, 1000, 1500):
        await write(own_pipe, *range(written + 1, written + 10))
        written += 9
        await own_pipe.settle(relay)
        published = await own_pipe.seqs()
        own_valkey.kill()
        (file,) = own_valkey.folder.glob("data/appendonlydir/*.incr.aof")
        with file.open("r+b") as log:
            log.truncate(file.stat().st_size - cut)
        own_valkey.start()
        await own_pipe.redis.connection_pool.disconnect()
        survived = (await own_pipe.seqs())["k"]
        assert survived == published["k"][: len(survived)] != published["k"]
        await write(own_pipe, written + 1)
        written += 1
        await own_pipe.settle(relay)
        assert await own_pipe.seqs() == {"k": list(range(1, written + 1))}


@DURABLE
async def test_a_kill_in_the_middle_of_publishing(own_pipe, own_valkey):
    """Valkey dies at any moment, again and again, while events flow: each is there once."""
    relay = await own_pipe.loaded(batch=3)
    stop = asyncio.Event()
    written = 0

    async def writing() -> None:
        nonlocal written
        connection = await own_pipe.connect()
        while not stop.is_set():
            written += 1
            await own_pipe.write(connection, "k", written)

    async def killing() -> None:
        for _ in range(4):
            goal = written + 50
            await until(lambda goal=goal: _true(written >= goal))
            own_valkey.kill()
            await asyncio.to_thread(own_valkey.start)
        stop.set()

    async def relaying() -> None:
        while not stop.is_set():
            try:
                await own_pipe.turn(relay)
            except (RedisError, OSError):
                await asyncio.sleep(0.001)

    await asyncio.gather(writing(), killing(), relaying())
    await relay.load()
    await own_pipe.settle(relay)
    assert await own_pipe.seqs() == {"k": list(range(1, written + 1))}


async def _true(value: bool) -> bool:
    return value


async def test_a_promoted_replica_without_the_last_writes(quiet_database, own_valkey):
    """State and streams went back together: exactly the missing events are published again."""
    with own_valkey.replica() as replica:
        async with (
            proxy(own_valkey.url()) as between,
            pipeline(quiet_database, between.url) as pipe,
        ):
            relay = await pipe.loaded(batch=2)
            await write(pipe, 1, 2, 3, 4, 5)
            await pipe.settle(relay)
            key = f"{{{pipe.name}:0}}:t"
            await until(lambda: _true(replica.execute("XLEN", key) == 5))
            replica.promote()  # it is cut off: what comes now it never gets
            await write(pipe, 6, 7, 8)
            await pipe.settle(relay)
            assert await pipe.seqs() == {"k": [1, 2, 3, 4, 5, 6, 7, 8]}
            own_valkey.kill()
            with pytest.raises(RedisError):
                await relay.save()
            between.target = replica.url()
            assert await pipe.seqs() == {"k": [1, 2, 3, 4, 5]}
            await write(pipe, 9)
            await pipe.settle(relay)
            assert await pipe.seqs() == {"k": [1, 2, 3, 4, 5, 6, 7, 8, 9]}


async def test_two_relays_of_one_lane_publish_each_event_once(pipe):
    """The compare decides between them; the loser goes on from where the winner stands."""
    writers = Writers(pipe, seed=3)
    await writers.prepare()
    stop = asyncio.Event()
    published = [0, 0]

    async def relaying(number: int) -> None:
        await pipe.reconnect()
        source, relay = pipe.source, pipe.relay(batch=3 * number + 1)
        await relay.load()
        while not stop.is_set():
            published[number] += await relay.advance(await source.look())

    async def stopping() -> None:
        await until(lambda: _true(min(published) > 100))
        stop.set()

    await asyncio.gather(writers.run(4, stop), stopping(), relaying(0), relaying(1))
    await pipe.settle(await pipe.loaded())
    assert await pipe.seqs() == await writers.committed()
