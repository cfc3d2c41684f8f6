"""Checkpoints, pruning, due events: what happens beside relaying."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from projector import keys
from projector.checkpoint import PUBLISHED, Checkpoints
from projector.janitor import Janitor
from projector.janitor.prune import Pruner
from projector.lane import LaneState
from projector.origin import OtherDatabase
from projector.position import Origin, Position
from projector.rejected import Rejected
from projector.relay import Relay
from projector.sink.redis import RedisSink
from support.lanes import pipeline

TOMORROW = datetime.now(UTC) + timedelta(days=2)


class House:
    """A lane with a janitor, and what tests ask of it."""

    def __init__(self, pipe, engine) -> None:
        self.pipe = pipe
        self.stream = keys.stream(pipe.name, 0, "t")
        self.checkpoints = Checkpoints(engine, pipe.outbox.tables, pipe.source.origin)
        self.janitor = Janitor(engine, pipe.redis, pipe.outbox, self.checkpoints)
        self.rejected = Rejected(engine, pipe.outbox.tables)
        self.pruner = Pruner(engine, pipe.outbox, self.checkpoints, timedelta(hours=24))

    async def relay(self) -> Relay:
        sink = RedisSink(self.pipe.redis, self.pipe.name)
        relay = Relay(0, self.pipe.source, sink, self.checkpoints, self.rejected)
        await relay.load()
        return relay

    async def left(self) -> list[int]:
        rows = await self.connection.fetch("select seq from outbox order by id")
        return [row["seq"] for row in rows]

    async def publish(self, relay: Relay, *seqs: int) -> None:
        for seq in seqs:
            await self.pipe.write(self.connection, "k", seq)
        await self.pipe.turn(relay)
        await self.janitor.checkpoint(relay)

    async def consume(self, group: str, count: int, *, acknowledge: bool = True) -> None:
        read = await self.pipe.redis.xreadgroup(group, "c", {self.stream: ">"}, count=count)
        entries = read[0][1] if isinstance(read, list) else next(iter(read.values()))[0]
        if acknowledge:
            await self.pipe.redis.xack(self.stream, group, *[entry[0] for entry in entries])


@pytest.fixture
async def house(database, redis_url):
    async with pipeline(database, redis_url) as pipe:
        engine = create_async_engine(database)
        house = House(pipe, engine)
        house.connection = await pipe.connect()
        yield house
        await house.connection.close()
        await engine.dispose()


async def test_without_groups_what_is_published_and_old_is_pruned(house):
    """Not what is young, and not what is not published."""
    relay = await house.relay()
    await house.publish(relay, 1, 2)
    await house.pipe.write(house.connection, "k", 3)
    assert await house.pruner.prune(0) == 0
    assert await house.pruner.prune(0, TOMORROW) == 2
    assert await house.left() == [3]


async def test_rows_wait_for_every_group(house):
    """A group that has acknowledged less, or has entries pending, holds them back."""
    relay = await house.relay()
    await house.publish(relay, 1, 2)
    for group in ("billing", "mail"):
        await house.pipe.redis.xgroup_create(house.stream, group, "0")
    await house.janitor.checkpoint(relay)
    assert await house.pruner.prune(0, TOMORROW) == 0
    await house.publish(relay, 3, 4)
    await house.consume("billing", 4)
    await house.consume("mail", 2)
    await house.consume("mail", 1, acknowledge=False)
    await house.janitor.checkpoint(relay)
    assert await house.pruner.prune(0, TOMORROW) == 2
    assert await house.left() == [3, 4]
    await house.consume("mail", 1)
    await house.janitor.checkpoint(relay)
    assert await house.pruner.prune(0, TOMORROW) == 0
    await house.pipe.redis.xack(house.stream, "mail", *await pending(house, "mail"))
    await house.janitor.checkpoint(relay)
    assert await house.pruner.prune(0, TOMORROW) == 2


async def pending(house, group: str) -> list[bytes]:
    found = await house.pipe.redis.xpending_range(house.stream, group, "-", "+", 10)
    return [entry["message_id"] for entry in found]


async def test_a_dropped_group_holds_nothing_back(house):
    """Forgetting it in the database is enough."""
    relay = await house.relay()
    await house.publish(relay, 1)
    await house.pipe.redis.xgroup_create(house.stream, "gone", "0")
    await house.janitor.checkpoint(relay)
    assert await house.pruner.prune(0, TOMORROW) == 0
    await house.pipe.redis.xgroup_destroy(house.stream, "gone")
    await house.checkpoints.drop_group("gone")
    assert await house.pruner.prune(0, TOMORROW) == 1


async def test_rows_of_a_transaction_that_commits_late_are_not_pruned_unpublished(house):
    """Their ids lie below the head, but the checkpoint has not seen them."""
    relay = await house.relay()
    late = await house.pipe.connect()
    transaction = late.transaction()
    await transaction.start()
    await house.pipe.write(late, "late", 1)
    await house.publish(relay, 1, 2)
    await transaction.commit()
    await late.close()
    assert await house.pruner.prune(0, TOMORROW) == 2
    assert await house.left() == [1]
    await house.publish(relay)
    assert (await house.pipe.seqs())["late"] == [1]


async def test_an_emptied_redis_resumes_where_the_oldest_group_stood(house):
    """Not at the beginning of time, and before everything that was not acknowledged."""
    relay = await house.relay()
    await house.publish(relay, 1, 2)
    await house.pipe.redis.xgroup_create(house.stream, "billing", "0")
    await house.consume("billing", 2)
    await house.janitor.checkpoint(relay)
    await house.publish(relay, 3)
    names = [f"{{{house.pipe.name}:0}}:{key}" for key in ("t", "@position", "@tops")]
    await house.pipe.redis.delete(*names)
    relay = await house.relay()
    await house.pipe.turn(relay)
    assert await house.pipe.seqs() == {"k": [3]}


async def test_a_promotion_rewinds_to_the_databases_own_checkpoint(house):
    """And to the start if there is none; another database is refused."""
    relay = await house.relay()
    await house.publish(relay, 1, 2)
    await house.publish(relay, 3)
    stored = relay.state
    saved = (await house.checkpoints.load(0))[PUBLISHED]
    promoted = Origin(stored.main.origin.system, "00000002")
    after = Checkpoints(house.checkpoints.engine, house.pipe.outbox.tables, promoted)
    fitted = await after.fit(0, stored)
    assert (fitted.main.origin, fitted.main.base) == (promoted, saved.base)
    assert fitted.main.epoch != stored.main.epoch
    assert (await after.fit(7, stored)).main.head == 0
    restored = Checkpoints(
        house.checkpoints.engine, house.pipe.outbox.tables, Origin("another", "00000001")
    )
    with pytest.raises(OtherDatabase, match="projector rebase"):
        await restored.fit(0, LaneState(Position(promoted, "e1")))


def command(house, redis_url: str, *words: str) -> str:
    database = house.pipe.database.render_as_string(hide_password=False)
    options = ["--database-url", database, "--redis-url", redis_url, "--name", house.pipe.name]
    done = subprocess.run(
        [sys.executable, "-m", "projector", *words, *options],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_groups_are_listed_and_dropped(house, redis_url):
    """A group that nobody runs any more is retired in Redis and in the database."""
    relay = await house.relay()
    await house.publish(relay, 1)
    await house.pipe.redis.xgroup_create(house.stream, "gone", "0")
    await house.janitor.checkpoint(relay)
    assert command(house, redis_url, "groups", "list") == "t: gone\n"
    assert "from 1 streams" in command(house, redis_url, "groups", "drop", "gone")
    await house.janitor.checkpoint(relay)
    assert command(house, redis_url, "groups", "list") == ""
    assert await house.pruner.prune(0, TOMORROW) == 1


async def test_a_rebase_publishes_what_is_retained_again(house, redis_url):
    """After a restore or a move: the stored state speaks of another database."""
    relay = await house.relay()
    await house.publish(relay, 1, 2)
    foreign = Position(Origin("another", "00000001"), "e1", head=99)
    await house.pipe.redis.set(keys.position(house.pipe.name, 0), str(LaneState(foreign)))
    with pytest.raises(OtherDatabase):
        await house.relay()
    assert "rebased 1 lanes" in command(house, redis_url, "rebase")
    await house.pipe.turn(await house.relay())
    assert await house.pipe.seqs() == {"k": [1, 2, 1, 2]}
