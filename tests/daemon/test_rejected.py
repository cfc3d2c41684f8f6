"""Rows that cannot be published for their own sake never block their lane."""

from __future__ import annotations

from projector import keys
from projector.config import Config
from projector.connect import engine_of
from projector.daemon import Projector
from projector.settings import Settings
from projector.source.postgres import PostgresSource
from projector.status import gather
from support.house import command

INSERT = """
insert into outbox (lane, event_id, topic, type, key, seq, data, content_type)
values (0, gen_random_uuid(), $1, 'changed', 'k', $2, $3, 'application/json')
"""


async def small(house) -> None:
    """A source that takes events of up to 100 bytes."""
    connection = await house.pipe.connect()
    house.pipe.source = await PostgresSource.connect(connection, "outbox", largest=100)


async def test_an_event_that_is_too_large_is_set_aside_and_the_lane_goes_on(house):
    """It is kept with its cause, once, whatever crashes; its neighbours are published."""
    await small(house)
    await house.pipe.write(house.connection, "k", 1)
    await house.connection.execute(INSERT, "t", 2, b"x" * 1000)
    await house.pipe.write(house.connection, "k", 3)
    for _ in range(2):  # the second one has forgotten that it did so before
        await house.pipe.redis.delete(keys.position(house.pipe.name, 0))
        await house.pipe.turn(await house.relay())
    assert (await house.pipe.seqs())["k"] == [1, 3, 1, 3]
    (row,) = await house.rejected.newest()
    assert (row.topic, row.size, row.lane) == ("t", 1000, 0)
    assert "event_bytes" in row.cause


async def test_a_topic_that_could_be_a_key_of_ours_is_set_aside(house):
    """Only SQL by hand can write one; no key of ours is touched by it."""
    for topic in ("@position", "with space", "line\nbreak", ""):
        await house.connection.execute(INSERT, topic, None, b"{}")
    await house.publish(await house.relay(), 1)
    assert await house.pipe.seqs() == {"k": [1]}
    assert {row.topic for row in await house.rejected.newest()} == {
        *("@position", "with space", "line\nbreak", "")
    }


async def test_what_was_set_aside_is_shown_retried_and_discarded(house, redis_url):
    """Once the limit is raised, it goes out under its own id; the others are forgotten."""
    await small(house)
    for seq in (1, 2):
        await house.connection.execute(INSERT, "t", seq, b"x" * 1000)
    await house.pipe.turn(await house.relay())
    two, one = await house.rejected.newest()
    assert str(one.event_id) in command(house, redis_url, "rejected", "list")
    assert "REJECTED EVENT" in command(house, redis_url, "status")
    assert "back" in command(house, redis_url, "rejected", "retry", str(one.event_id))
    assert "discarded 1" in command(house, redis_url, "rejected", "discard", str(two.event_id))
    assert await house.rejected.newest() == []
    await house.pipe.reconnect()
    await house.pipe.turn(await house.relay())
    ((_, entry),) = await house.pipe.redis.xrange(house.stream)
    assert (entry[b"id"].decode(), entry[b"sequence"]) == (str(one.event_id), b"1")


async def test_a_page_of_large_events_is_not_read_at_once(house):
    """A thousand megabytes would be; the limit follows the size of what came."""
    asked: list[int] = []

    class Counting(PostgresSource):
        async def read(self, lane, position, limit, *more):
            asked.append(limit)
            return await super().read(lane, position, limit, *more)

    await house.pipe.reconnect(Counting)
    for seq in range(1, 201):
        await house.connection.execute(INSERT, "t", seq, b"x" * 100_000)
    relay = await house.relay()
    await house.pipe.turn(relay)
    assert (await house.pipe.seqs())["k"] == list(range(1, 201))
    assert (asked[0], *set(asked[1:])) == (64, 41)


async def test_status_tells_what_was_set_aside(house, database):
    """For people and for machines."""
    await house.connection.execute(INSERT, "@bad", None, b"{}")
    await house.pipe.turn(await house.relay())
    engine = engine_of(database)
    found = await gather(engine, house.pipe.redis, house.pipe.outbox)
    assert [row.topic for row in found.rejected] == ["@bad"]
    await engine.dispose()


async def test_the_limit_is_a_setting(house, database):
    """As in the configuration file."""
    await house.connection.execute(INSERT, "t", 1, b"x" * 1000)
    engine = engine_of(database)
    options = Config(name=house.pipe.name, event_bytes=100).options()
    projector = Projector(engine, house.pipe.redis, Settings(**options))
    assert await projector.drain() == 0
    assert len(await projector.rejected.newest()) == 1
    await engine.dispose()
