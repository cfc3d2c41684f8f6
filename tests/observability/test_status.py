"""The status of real lanes: backlog, leases, detached topics, streams, and the horizon."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from outbox import Outbox, layout
from projector import keys
from projector.connect import engine_of
from projector.daemon import Projector
from projector.embedded.ports import Port
from projector.lane import LaneState
from projector.lease import Leases
from projector.settings import Settings
from projector.source.batch import Topics
from projector.status import gather
from projector.status.backlog import part_of
from projector.status.postgres import PostgresReader
from projector.status.report import Lane, Status, plain
from projector.topology import Topic
from support.lanes import client, pipeline

SECOND = timedelta(seconds=1)
BACKENDS = "select pid from pg_stat_activity where datname = current_database()"


def only(status: Status) -> Lane:
    assert status.database_problem is None
    assert status.redis_problem is None
    (lane,) = status.lanes
    return lane


def events(lane: Lane) -> int:
    assert lane.backlog is not None
    assert lane.backlog.exact
    return lane.backlog.events


async def test_nothing_was_ever_written(look):
    """Empty tables and an empty Redis are no trouble."""
    status = await look()
    assert status.database_problem is None
    assert status.redis_problem is None
    assert (status.lanes, status.streams, status.projectors) == ((), (), ())


async def test_what_was_never_published_is_backlog(pipe, look):
    """All of it, with the age of the oldest; there is no position yet."""
    connection = await pipe.connect()
    for seq in range(1, 6):
        await pipe.write(connection, "k", seq)
    await connection.execute(
        "update outbox set created_at = now() - interval '1 hour' where seq = 2"
    )
    lane = only(await look())
    assert events(lane) == 5
    assert not lane.published
    assert lane.position_age is None
    assert timedelta(hours=1) <= lane.backlog.oldest_age < timedelta(hours=1, minutes=1)


async def test_what_was_published_is_none(pipe, look):
    """The position is as old as its newest event."""
    connection = await pipe.connect()
    await pipe.write(connection, "k", 1)
    await pipe.turn(await pipe.loaded())
    lane = only(await look())
    assert events(lane) == 0
    assert lane.published
    assert lane.backlog.oldest_age is None
    assert timedelta(0) <= lane.position_age < 30 * SECOND


async def test_a_row_that_commits_late_is_backlog(pipe, look):
    """Its id lies below what is published; it counts from its commit on."""
    connection, slow = await pipe.connect(), await pipe.begin()
    await pipe.write(slow, "slow", 1)
    await pipe.write(connection, "k", 1)
    relay = await pipe.loaded()
    assert await pipe.turn(relay) == 1
    assert events(only(await look())) == 0
    await slow.execute("commit")
    lane = only(await look())
    assert (events(lane), lane.backlog.late) == (1, 1)
    assert lane.backlog.oldest_age is not None
    assert await pipe.turn(relay) == 1
    assert events(only(await look())) == 0


async def test_late_rows_count_until_each_is_published(pipe, look):
    """Also in the middle of them, with newer ones published and a newer one waiting."""
    connection = await pipe.connect()
    slow = [await pipe.begin() for _ in range(3)]
    for transaction in slow:
        await pipe.write(transaction, "slow", slow.index(transaction))
    await pipe.write(connection, "k", 1)
    relay = await pipe.loaded(batch=1, pages=1)
    await pipe.turn(relay)
    await pipe.turn(relay)  # finds nothing more, and so closes the window
    for transaction in slow:
        await transaction.execute("commit")
    await pipe.write(connection, "k", 2)
    left = []
    for _ in range(4):
        lane = only(await look())
        left.append((events(lane), lane.backlog.late))
        assert await pipe.turn(relay) == 1
    assert left == [(4, 3), (3, 2), (2, 1), (1, 0)]


async def test_the_backlog_is_what_is_committed_and_not_in_the_stream(pipe, look):
    """At every step of a relay that goes one event at a time, with transactions of all lengths."""
    chance = random.Random(11)
    connection, open_ = await pipe.connect(), []
    relay = await pipe.loaded(batch=1, pages=1)
    for seq in range(1, 41):
        match chance.randrange(3):
            case 0:
                open_.append(await pipe.begin())
                await pipe.write(open_[-1], "k", seq)
            case 1 if open_:
                late = open_.pop(chance.randrange(len(open_)))
                await late.execute(chance.choice(["commit", "commit", "rollback"]))
            case _:
                await pipe.write(connection, "k", seq)
        for _ in range(chance.randrange(3)):
            await pipe.turn(relay)
        committed = await connection.fetchval("select count(*) from outbox")
        published = await pipe.redis.xlen(keys.stream(pipe.name, 0, "t"))
        # The relay need not store a position that moved without events: that changes nothing.
        assert events(only(await look())) == committed - published
    assert published > 10


async def test_a_long_backlog_is_an_estimate_that_says_so(pipe):
    """From the rows that come next, at a cost that does not grow."""
    connection = await pipe.connect()
    await connection.execute(
        "insert into outbox (lane, event_id, topic, type, key, data, content_type)"
        "select 0, gen_random_uuid(), 't', 'x', 'k', '{}', 'x' from generate_series(1, 3000)"
    )
    reader = PostgresReader(connection, "outbox", "outbox_meta", SECOND)
    ((backlog, _),) = await reader.backlogs([part_of(0, None, Topics())], limit=100)
    assert not backlog.exact
    assert backlog.events == 3000
    ((backlog, _),) = await reader.backlogs([part_of(0, None, Topics())], limit=3001)
    assert backlog.exact
    assert backlog.events == 3000


async def test_a_detached_topic_has_a_backlog_of_its_own(pipe, look):
    """The lane has none, though the topic's rows lie below its position."""
    pipe.topology["full"] = Topic(high_water=1)
    connection, relay = await pipe.connect(), await pipe.loaded()
    for seq in range(1, 5):
        await pipe.write(connection, f"f{seq}", seq, "full")
        await pipe.write(connection, f"t{seq}", seq, "t")
        await pipe.turn(relay)
        await pipe.turn(relay)
    lane = only(await look())
    (detached,) = lane.detached
    assert events(lane) == 0
    assert detached.topic == "full"
    assert (detached.backlog.events, detached.backlog.exact) == (3, True)
    assert detached.backlog.oldest_age is not None


async def test_a_stream_of_the_wrong_type_is_named(pipe, look):
    """Detached before anything was published to it."""
    await pipe.redis.set(keys.stream(pipe.name, 0, "t"), "mine")
    connection, relay = await pipe.connect(), await pipe.loaded()
    await pipe.write(connection, "k", 1)
    await pipe.turn(relay)
    assert relay.state.detached
    (stream,) = (await look()).streams
    assert stream.problem == "its key holds a string"


async def test_a_deleted_stream_is_named(pipe, look):
    """It was published to, and is not there."""
    connection = await pipe.connect()
    await pipe.write(connection, "k", 1)
    await pipe.turn(await pipe.loaded())
    await pipe.redis.delete(keys.stream(pipe.name, 0, "t"))
    (stream,) = (await look()).streams
    assert (stream.topic, stream.problem) == ("t", "there is no such stream")


async def test_streams_and_groups(pipe, look):
    """Length, memory, last id; per group what it has to get, to acknowledge, and has lost."""
    pipe.topology["t"] = Topic(groups=("billing", "mail"))
    connection = await pipe.connect()
    for seq in range(1, 11):
        await pipe.write(connection, "k", seq)
    await pipe.turn(await pipe.loaded())
    key = keys.stream(pipe.name, 0, "t")
    await pipe.redis.xreadgroup("billing", "one", {key: ">"}, count=4)
    lost = {layout.loss("unread", "t", "billing"): 2, layout.loss("pending", "t", "billing"): 1}
    await pipe.redis.hset(layout.lost(pipe.name, 0), mapping=lost)
    (stream,) = (await look()).streams
    last = await pipe.redis.xrevrange(key, count=1)
    assert (stream.key, stream.lane, stream.topic, stream.length) == (key, 0, "t", 10)
    assert stream.memory > 500
    assert stream.last_id == last[0][0].decode()
    assert timedelta(0) <= stream.last_age < 30 * SECOND
    billing, mail = stream.groups
    assert (billing.name, billing.lag, billing.pending) == ("billing", 6, 4)
    assert (mail.name, mail.lag, mail.pending, mail.oldest_pending) == ("mail", 10, 0, None)
    assert (billing.lost, mail.lost) == (3, 0)
    assert billing.oldest_pending_age >= billing.oldest_pending_idle - SECOND


async def test_who_holds_which_lane(pipe, look):
    """By host and process, until the lease ends; and who else is alive."""
    connection = await pipe.connect()
    await pipe.write(connection, "k", 1)
    one, two = (Leases(pipe.redis, pipe.name, 10 * SECOND) for _ in range(2))
    assert only(await look()).holder is None
    await one.join()
    await two.join()
    await one.hold(0)
    status = await look()
    lane = only(status)
    assert lane.holder == one.token
    assert timedelta(0) < lane.lease_left <= 10 * SECOND
    assert status.projectors == tuple(sorted([one.token, two.token]))


async def test_a_projector_that_died_is_not_alive(pipe, look):
    """Its entry stays until somebody cleans up; its time is over."""
    await pipe.redis.zadd(keys.members(pipe.name), {"dead": 1000})
    assert (await look()).projectors == ()


async def test_a_long_transaction_holds_the_horizon(pipe, look):
    """With its process, its age, its state and what it last did, in 80 characters."""
    slow = await pipe.begin()
    await slow.execute(f"select 1, -- {'x' * 200}\n 2")
    pid = await slow.fetchval("select pg_backend_pid()")
    await slow.execute(f"select 1, -- {'x' * 200}\n 2")
    (holder,) = [h for h in (await look()).horizon if h.pid == pid]
    assert (holder.kind, holder.state) == ("session", "idle in transaction")
    assert holder.query.startswith("select 1, -- xxx")
    assert len(holder.query) == 80
    assert timedelta(0) < holder.age < 30 * SECOND


async def test_a_prepared_transaction_holds_the_horizon(pipe, look):
    """Nobody is connected; it has a name."""
    connection = await pipe.begin()
    await pipe.write(connection, "k", 1)
    await connection.execute(f"prepare transaction '{pipe.name}'")
    try:
        (holder,) = [h for h in (await look()).horizon if h.kind == "prepared"]
        assert (holder.name, holder.pid) == (pipe.name, None)
    finally:
        await connection.execute(f"rollback prepared '{pipe.name}'")


async def test_the_status_does_not_name_itself(look):
    """Looking is no transaction to worry about."""
    assert (await look()).horizon == ()


async def test_lanes_above_the_count_are_shown(database, redis_url):
    """As many as the database says, and those that rows lie in."""
    async with pipeline(database, redis_url, lanes=4) as pipe:
        connection, engine = await pipe.connect(), engine_of(database)
        await connection.execute("insert into outbox_meta (name, lanes) values ($1, 3)", pipe.name)
        assert len((await gather(engine, pipe.redis, pipe.outbox)).lanes) == 3
        await connection.execute(
            "insert into outbox (lane, event_id, topic, type, key, data, content_type)"
            "values (3, gen_random_uuid(), 't', 'x', 'k', '{}', 'x')"
        )
        lanes = (await gather(engine, pipe.redis, pipe.outbox)).lanes
        assert [lane.backlog.events for lane in lanes] == [0, 0, 0, 1]
        await engine.dispose()


async def test_the_tables_of_another_outbox_are_refused(pipe, look):
    """Its lanes would be nonsense."""
    connection = await pipe.connect()
    await connection.execute("insert into outbox_meta (name, lanes) values ('other', 3)")
    assert (await look()).database_problem == (
        f"the tables belong to outbox 'other', not '{pipe.name}'"
    )


async def test_a_position_that_cannot_be_read_is_told(pipe, look):
    """The lane's problem; the rest is shown."""
    connection = await pipe.connect()
    await pipe.write(connection, "k", 1)
    await pipe.redis.set(keys.position(pipe.name, 0), "nonsense")
    lane = only(await look())
    assert "nonsense" in lane.problem
    assert lane.backlog is None


async def test_a_position_of_another_database_is_told(pipe, look):
    """Its ids mean nothing here."""
    connection = await pipe.connect()
    await pipe.write(connection, "k", 1)
    await pipe.turn(await pipe.loaded())
    key = keys.position(pipe.name, 0)
    stored = (await pipe.redis.get(key)).decode()
    system = LaneState.parse(stored).main.origin.system
    await pipe.redis.set(key, stored.replace(system, "1234"))
    lane = only(await look())
    assert "projector rebase" in lane.problem
    assert lane.backlog is None


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_a_redis_that_is_away_is_told(pipe, database):
    """The lanes and the horizon are shown; of the backlog nobody knows."""
    port, engine = Port(), engine_of(database)
    redis = client(f"redis://:s3cret@127.0.0.1:{port.number}")
    connection = await pipe.connect()
    await pipe.write(connection, "k", 1)
    status = await gather(engine, redis, pipe.outbox)
    assert status.database_problem is None
    assert "ConnectionError" in status.redis_problem
    assert "s3cret" not in status.redis_problem
    assert status.lanes == (Lane(0),)
    await redis.aclose()
    await engine.dispose()
    port.release()


async def test_a_redis_that_does_not_answer_is_given_up(pipe, database, silent):
    """Within the limit."""
    engine, redis = engine_of(database), client(f"redis://127.0.0.1:{silent}")
    status = await gather(engine, redis, pipe.outbox, limit=timedelta(milliseconds=200))
    assert status.redis_problem == "no answer within 0.2 s"
    assert status.database_problem is None
    await redis.aclose()
    await engine.dispose()


async def test_a_database_that_is_away_is_told(pipe):
    """What Redis knows is shown: leases, streams and groups."""
    connection = await pipe.connect()
    await pipe.write(connection, "k", 1)
    await pipe.turn(await pipe.loaded())
    port = Port()
    engine = engine_of(f"postgresql://me:s3cret@127.0.0.1:{port.number}/x")
    status = await gather(engine, pipe.redis, pipe.outbox)
    assert status.database_problem
    assert "s3cret" not in status.database_problem
    assert [(lane.lane, lane.published, lane.backlog) for lane in status.lanes] == [(0, True, None)]
    assert [stream.length for stream in status.streams] == [1]
    port.release()


async def test_a_database_that_does_not_answer_is_given_up(pipe, silent):
    """Within the limit."""
    engine = engine_of(f"postgresql://me@127.0.0.1:{silent}/x")
    limit = timedelta(milliseconds=200)
    status = await gather(engine, pipe.redis, pipe.outbox, limit=limit)
    assert status.database_problem == "no answer within 0.2 s"
    await engine.dispose()


async def test_a_database_that_falls_silent_is_given_up(pipe, database):
    """Also if it does not even answer a request to cancel."""
    connection = await pipe.connect()
    known = {row[0] for row in await connection.fetch(BACKENDS)}
    # Without a ping, the connection that is kept is only found to be frozen in use.
    engine = create_async_engine(pipe.database.set(drivername="postgresql+asyncpg"))
    await gather(engine, pipe.redis, pipe.outbox)
    (pid,) = {row[0] for row in await connection.fetch(BACKENDS)} - known
    os.kill(pid, signal.SIGSTOP)
    try:
        limit = timedelta(seconds=1)
        status = await gather(engine, pipe.redis, pipe.outbox, limit=limit)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "closed" in status.database_problem
    assert status.redis_problem is None
    await engine.dispose()


async def test_tables_that_are_locked_are_not_waited_for(pipe, database):
    """A migration may hold them for long."""
    connection, engine = await pipe.begin(), engine_of(database)
    await connection.execute("lock table outbox in access exclusive mode")
    limit = timedelta(milliseconds=200)
    status = await gather(engine, pipe.redis, pipe.outbox, limit=limit)
    assert "statement timeout" in status.database_problem
    await engine.dispose()


async def test_missing_tables_are_told(database, redis_url):
    """Nothing is created, nothing raised."""
    engine, redis = engine_of(database), client(redis_url)
    status = await gather(engine, redis, Outbox(name="shop"))
    assert "outbox_meta" in status.database_problem
    await redis.aclose()
    await engine.dispose()


async def test_sqlite_has_a_backlog_too(tmp_path, redis_url):
    """Per lane, with ages; a horizon it has not."""
    name, url = f"t{uuid4().hex[:10]}", f"sqlite:///{tmp_path}/shop.db"
    events, writing = Outbox(name=name, lanes=2), create_engine(url)
    events.metadata.create_all(writing)
    engine, redis = engine_of(url), client(redis_url)
    projector = Projector(engine, redis, Settings(name=name, lanes=2))

    def write() -> None:
        with Session(writing) as session, session.begin():
            for key in "abcdefgh":
                events.emit(session, "changed", topic="t", key=key, data=1)

    write()
    await projector.drain()
    write()
    status = await gather(engine, redis, events)
    assert (status.database_problem, status.redis_problem, status.horizon) == (None, None, ())
    assert sum(lane.backlog.events for lane in status.lanes) == 8
    assert all(timedelta(0) <= lane.backlog.oldest_age < 30 * SECOND for lane in status.lanes)
    assert all(timedelta(0) <= lane.position_age < 30 * SECOND for lane in status.lanes)
    await projector.drain()
    assert [lane.backlog.events for lane in (await gather(engine, redis, events)).lanes] == [0, 0]
    await redis.aclose()
    await engine.dispose()
    writing.dispose()


async def test_looking_makes_no_sqlite_file(tmp_path, redis_url):
    """A wrong path is told."""
    engine, redis = engine_of(f"sqlite:///{tmp_path}/none.db"), client(redis_url)
    status = await gather(engine, redis, Outbox(name="shop"))
    assert status.database_problem == f"there is no database file {tmp_path}/none.db"
    assert not list(tmp_path.iterdir())
    await redis.aclose()


async def test_looking_writes_nothing(pipe, look):
    """Neither to the database nor to Redis."""
    connection = await pipe.connect()
    await pipe.write(connection, "k", 1)
    await pipe.turn(await pipe.loaded())

    async def state() -> tuple[object, ...]:
        names = sorted([key async for key in pipe.redis.scan_iter(f"*{pipe.name}*")])
        dumps = [await pipe.redis.dump(name) for name in names]
        tables = [table.name for table in pipe.outbox.tables.all()]
        rows = [await connection.fetch(f"select xmin, xmax, ctid, * from {t}") for t in tables]
        return names, dumps, rows

    before = await state()
    await look()
    assert await state() == before


async def test_json_has_seconds_and_plain_values(pipe, look):
    """Every duration says its unit in its name."""
    connection = await pipe.connect()
    await pipe.write(connection, "k", 1)
    found = json.loads(json.dumps(plain(await look())))
    (lane,) = found["lanes"]
    assert lane["backlog"]["events"] == 1
    assert lane["backlog"]["oldest_age_seconds"] >= 0
    assert lane["lease_left_seconds"] is None
    assert found["at"].endswith("+00:00")
