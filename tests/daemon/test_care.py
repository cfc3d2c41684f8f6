"""The care of the streams, beside a relay and in a running projector."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from inbox import recover_pending_messages
from projector import keys
from projector.checkpoint import PUBLISHED
from support.daemons import eventually, projector
from support.groups import entries_of

MANY = 100
"""Entries that fill more than one node of a stream."""


async def test_a_trimmed_stream_is_neither_lost_nor_behind(house):
    """Publishing goes on, and what a group has acknowledged stays acknowledged."""
    relay = await house.relay()
    await house.publish(relay, *range(1, MANY + 1))
    await house.pipe.redis.xgroup_create(house.stream, "billing", "0")
    await house.consume("billing", MANY)
    await house.janitor.checkpoint(relay)
    before = await house.checkpoints.load(0)
    assert before["billing"] == before[PUBLISHED]
    await house.janitor.tend(0)
    assert await house.pipe.redis.xlen(house.stream) < MANY
    await house.janitor.checkpoint(relay)
    assert await house.checkpoints.load(0) == before
    await house.publish(relay, MANY + 1)
    assert not relay.state.detached
    assert (await house.pipe.seqs())["k"][-1] == MANY + 1
    await house.consume("billing", 1)
    await house.janitor.checkpoint(relay)
    after = await house.checkpoints.load(0)
    assert after["billing"] == after[PUBLISHED] != before[PUBLISHED]


async def test_trimming_can_be_switched_off(house):
    """Then entries stay, whoever has acknowledged them."""
    house.janitor.trim = False
    relay = await house.relay()
    await house.publish(relay, *range(1, MANY + 1))
    await house.pipe.redis.xgroup_create(house.stream, "billing", "0")
    await house.consume("billing", MANY)
    await house.janitor.checkpoint(relay)
    await house.janitor.tend(0)
    assert await house.pipe.redis.xlen(house.stream) == MANY
    house.janitor.trim = True
    await house.janitor.tend(0)
    assert await house.pipe.redis.xlen(house.stream) < MANY


async def test_a_group_that_the_database_knows_and_redis_does_not_keeps_everything(house):
    """It was lost in Redis, and is made anew at the beginning of the stream."""
    await house.checkpoints.register("t", {"mail"})
    relay = await house.relay()
    await house.publish(relay, *range(1, MANY + 1))
    await house.pipe.redis.xgroup_create(house.stream, "billing", "0")
    await house.consume("billing", MANY)
    await house.janitor.checkpoint(relay)
    await house.janitor.tend(0)
    assert await house.pipe.redis.xlen(house.stream) == MANY


async def test_an_emptied_redis_is_published_again_after_trimming(house):
    """From where the oldest group stood: what was trimmed was acknowledged."""
    relay = await house.relay()
    await house.publish(relay, *range(1, MANY + 1))
    await house.pipe.redis.xgroup_create(house.stream, "billing", "0")
    await house.consume("billing", MANY)
    await house.janitor.checkpoint(relay)
    await house.janitor.tend(0)
    await house.publish(relay, MANY + 1)
    names = [keys.position(house.pipe.name, 0), keys.tops(house.pipe.name, 0), house.stream]
    await house.pipe.redis.delete(*names)
    relay = await house.relay()
    await house.pipe.turn(relay)
    await house.janitor.checkpoint(relay)
    await house.janitor.tend(0)
    assert await house.pipe.seqs() == {"k": [MANY + 1]}


class Plain:
    """A consumer as people write them with redis-py."""

    def __init__(self, house, group: str, name: str) -> None:
        self.redis, self.stream = house.pipe.redis, house.stream
        self.group, self.name = group, name
        self.stopped = False

    async def read(self, id: str) -> list[tuple[bytes, int]]:
        read = await self.redis.xreadgroup(self.group, self.name, {self.stream: id}, count=7)
        return [(entry, int(fields[b"sequence"])) for entry, fields in entries_of(read)]

    async def work(self, handled: list[int], *ids: str) -> None:
        """`ids`: what it reads, in turn."""
        while not self.stopped:
            for id in ids:
                for entry, seq in await self.read(id):
                    handled.append(seq)
                    await self.redis.xack(self.stream, self.group, entry)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def working(consumer: Plain, handled: list[int], *ids: str):
    task = asyncio.create_task(consumer.work(handled, *ids))
    try:
        yield
    finally:
        consumer.stopped = True
        await task


async def test_plain_consumers_lose_nothing_to_a_death(house, redis_url, tmp_path):
    """One that re-reads its pending list is given what a dead one has left; where consumers read
    only `>`, the recovery worker handles it. Nobody's entries become dead letters."""
    config = tmp_path / "projector.toml"
    config.write_text('pending_idle = 0.5\n[topics.t]\nrecover = ["rereads"]\n')
    redis, expected = house.pipe.redis, list(range(1, MANY + 1))
    for group in ("rereads", "forward"):
        await redis.xgroup_create(house.stream, group, "0", mkstream=True)
    options = ("--config", str(config), "--checkpoint", "0.1")
    rereads: list[int] = []
    forward: list[int] = []

    async def recovered(entry: str, fields: dict[bytes, bytes]) -> None:
        forward.append(int(fields[b"sequence"]))

    async def all_handled() -> bool:
        return sorted(set(rereads)) == expected

    async def nothing_pending() -> bool:
        await recover_pending_messages(redis, house.stream, "forward", recovered, idle=0.5)
        states = await redis.xinfo_groups(house.stream)
        return all(state["pending"] == 0 and state["lag"] == 0 for state in states)

    with projector(house.pipe, redis_url, *options):
        for seq in expected[:20]:
            await house.pipe.write(house.connection, "k", seq)
        await eventually(lambda: there_are(house, 20))
        for group in ("rereads", "forward"):
            assert len(await Plain(house, group, "dead").read(">")) == 7
        alive = [
            working(Plain(house, "rereads", "alive"), rereads, "0", ">"),
            working(Plain(house, "forward", "alive"), forward, ">"),
        ]
        async with alive[0], alive[1]:
            for seq in expected[20:]:
                await house.pipe.write(house.connection, "k", seq)
            await eventually(all_handled)
            theirs = await redis.xpending_range(house.stream, "forward", "-", "+", 10)
            assert {entry["consumer"] for entry in theirs} == {b"dead"}  # nobody asked for it
            await eventually(nothing_pending)
            assert sorted(forward) == expected
            await eventually(lambda: trimmed(house))
    assert sorted(rereads) == expected
    assert not [key async for key in redis.scan_iter(f"{{{house.pipe.name}:0}}:@dead*")]
    assert not await redis.exists(f"{{{house.pipe.name}:0}}:@lost")


async def there_are(house, count: int) -> bool:
    return await house.pipe.redis.xlen(house.stream) == count


async def trimmed(house) -> bool:
    return await house.pipe.redis.xlen(house.stream) < MANY
