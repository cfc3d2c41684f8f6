"""Another server answers: a standby, or a promoted one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

import asyncpg
import pytest
from sqlalchemy import make_url

from projector.embedded import Postgres
from projector.embedded.standby import Standby
from projector.position import Position
from projector.source.postgres import NotPrimary, PostgresSource, TimelineChanged
from support.lanes import Pipeline, pipeline
from support.waiting import until


class Rerouted(NamedTuple):
    """A source whose connection leads to the standby, as a pooler may do it; rows wait there."""

    pipe: Pipeline
    standby: Standby
    source: PostgresSource
    position: Position
    """In an open window."""


@pytest.fixture
async def rerouted(own_postgres: Postgres, redis_url: str) -> AsyncIterator[Rerouted]:
    with own_postgres.standby() as standby:
        async with pipeline(own_postgres.url(), redis_url) as pipe:
            writer = await pipe.connect()
            relay = await pipe.loaded()
            await pipe.write(writer, "k", 1)
            await pipe.turn(relay)
            for seq in (2, 3):
                await pipe.write(writer, "k", seq)
            position = relay.state.main.opened(await pipe.source.look())
            await until(lambda: _has(standby, 3))
            connection = await asyncpg.connect(standby.url(driver=None))
            try:
                source = PostgresSource(connection, "outbox", pipe.source.origin, 180000)
                yield Rerouted(pipe, standby, source, position)
            finally:
                await connection.close()


async def test_a_standby_is_refused(rerouted):
    """Its snapshots can miss running transactions: no window, no page, no connection."""
    with pytest.raises(NotPrimary, match="standby"):
        await rerouted.source.look()
    with pytest.raises(NotPrimary, match="standby"):
        await rerouted.source.read(0, rerouted.position, 10)
    with pytest.raises(NotPrimary, match="standby"):
        await PostgresSource.connect(rerouted.source._connection, "outbox")


async def test_a_promotion_is_noticed_in_every_window_and_page(rerouted):
    """The promoted standby may lack commits and give their ids and xids out again."""
    rerouted.standby.promote()
    for _ in range(2):  # not only the first time
        with pytest.raises(TimelineChanged) as caught:
            await rerouted.source.look()
        assert caught.value.expected == rerouted.pipe.source.origin
        assert caught.value.found == "00000002"
        with pytest.raises(TimelineChanged):
            await rerouted.source.read(0, rerouted.position, 10)
    empty = rerouted.position.advanced(1_000_000)
    with pytest.raises(TimelineChanged):
        await rerouted.source.read(0, empty, 10)


async def test_nothing_is_published_from_a_promoted_standby(rerouted):
    """A lane in the middle of a window stops there: what is stored stays as it was."""
    pipe = rerouted.pipe
    moment = await pipe.source.look()
    pipe.source = rerouted.source
    relay = await pipe.loaded(batch=1)
    before = str(relay.state)
    rerouted.standby.promote()
    with pytest.raises(TimelineChanged):
        await relay.advance(moment)
    assert str((await pipe.loaded()).state) == before
    assert await pipe.seqs() == {"k": [1]}


async def test_a_promotion_that_lost_commits_loses_no_event(rerouted, own_postgres):
    """Ids and xids of the lost commits are used again by busy applications before the relay is
    back: every event that the database has is in the stream, in order."""
    pipe = rerouted.pipe
    await pipe.settle(await pipe.loaded())
    rerouted.standby.promote()  # cut off: what comes now it never gets
    lost = await pipe.connect()
    for seq in range(4, 9):
        await pipe.write(lost, "k", seq)
    await pipe.settle(await pipe.loaded())
    own_postgres.kill()

    pipe.database = make_url(rerouted.standby.url())
    await pipe.reconnect()
    writer, slow = await pipe.connect(), await pipe.begin()
    await pipe.write(slow, "slow", 1)
    for seq in range(4, 15):  # 4 to 8 are other events now
        await pipe.write(writer, "k", seq)
    relay = await pipe.loaded()
    await pipe.settle(relay)
    await slow.execute("commit")
    await pipe.settle(relay)
    ids = [row["id"] for row in await writer.fetch("select event_id::text id from outbox")]
    published = await pipe.redis.xrange(f"{{{pipe.name}:0}}:t")
    seqs = {entry[b"id"].decode(): int(entry[b"sequence"]) for _, entry in published}
    assert set(ids) <= seqs.keys()
    again = [seqs[entry[b"id"].decode()] for _, entry in published if entry[b"subject"] == b"k"]
    assert again == [*range(1, 9), *range(1, 15)]


async def _has(standby: Standby, rows: int) -> bool:
    try:
        return bool(standby.execute("select count(*) from outbox")[0][0] == rows)
    except asyncpg.UndefinedTableError:
        return False
