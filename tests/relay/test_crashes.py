"""PostgreSQL is killed. Each trap is also run by a source without the rule that avoids it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Any

import asyncpg
import pytest

from projector.embedded import Postgres
from projector.lane import LaneState
from projector.sink.redis import RedisSink
from projector.source.postgres import PostgresSource
from support.lanes import Pipeline, pipeline
from support.waiting import until


class Careless(PostgresSource):
    """Takes a snapshot as it comes, durable or not."""

    async def _await_flush(self, lsn: str) -> None:
        pass


async def crash(pipe: Pipeline, victim: Any) -> None:
    """Kills one backend, as the OOM killer does; returns when PostgreSQL has recovered."""
    witness = await pipe.connect()
    pid = await victim.fetchval("select pg_backend_pid()")
    os.kill(pid, signal.SIGKILL)

    async def thrown_out() -> bool:
        return bool(witness.is_closed())  # which happens before the log is replayed

    async def recovered() -> bool:
        with suppress(OSError, asyncpg.PostgresError):
            await (await pipe.connect()).close()
            return True
        return False

    await until(thrown_out)
    await until(recovered)


async def flushed(connection: Any) -> bool:
    statement = "select pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()"
    return bool(await connection.fetchval(statement))


async def xids_come_again(pipe: Pipeline, source: type[PostgresSource]) -> bool:
    """Publishes through a crash that hands xids out again. Whether it really did."""
    await pipe.reconnect(source)
    writer = await pipe.connect()
    await pipe.write(writer, "before", 1)
    await pipe.write(writer, "before", 2)
    for _ in range(2):
        await writer.execute("begin")
        await pipe.write(writer, "aborted", 1)
        await writer.execute("rollback")  # nobody flushes that
    assert not await flushed(writer)

    # The relay dies after the first page of a window.
    relay = await pipe.loaded()
    opened = relay.state.main.opened(await pipe.source.look())
    page = await pipe.source.read(0, opened, 1)
    sink = RedisSink(pipe.redis, pipe.name)
    await sink.publish(0, "", str(LaneState(page.position)), page.rows)
    await crash(pipe, writer)

    await pipe.reconnect(source)
    early, late = await pipe.begin(), await pipe.begin()
    again = int(await early.fetchval("select pg_current_xact_id()::text"))
    await pipe.write(early, "early", 1)
    await pipe.write(late, "late", 1)
    await late.execute("commit")
    relay = await pipe.loaded()
    await pipe.turn(relay)  # goes on in the window that was open before the crash
    await early.execute("commit")
    await pipe.settle(relay)
    assert opened.upto
    return opened.upto.snapshot.sees(again)


WRITTEN = {"before": [1, 2], "early": [1], "late": [1]}


async def test_nothing_is_lost_when_xids_are_handed_out_again(own_postgres, redis_url):
    """A killed backend makes PostgreSQL forget rollbacks, but none that a window has counted on."""
    async with pipeline(own_postgres.url(), redis_url) as pipe:
        assert not await xids_come_again(pipe, PostgresSource)
        assert await pipe.seqs() == WRITTEN


async def test_without_the_flush_a_reused_xid_hides_an_event(own_postgres, redis_url):
    """The trap is real: the same crash, seen by a source that does not wait for the log."""
    async with pipeline(own_postgres.url(), redis_url) as pipe:
        assert await xids_come_again(pipe, Careless)
        assert await pipe.seqs() == {"before": [1, 2], "late": [1]}


asynchronous = pytest.mark.parametrize(
    "own_postgres", [{"synchronous_commit": "off"}], indirect=True, ids=["asynchronous"]
)


async def lost_commits(pipe: Pipeline, server: Postgres, source: type[PostgresSource]) -> list[int]:
    """Publishes one event, commits another, kills the server. What the database still has."""
    await pipe.reconnect(source)
    relay, writer = await pipe.loaded(), await pipe.connect()
    await writer.execute("checkpoint")
    await pipe.write(writer, "k", 1)
    assert not await flushed(writer)
    assert await pipe.turn(relay) == 1
    await pipe.write(writer, "k", 2)
    server.kill()
    server.start()
    await pipe.reconnect(source)
    rows = await (await pipe.connect()).fetch("select seq from outbox order by id")
    return [row["seq"] for row in rows]


@asynchronous
async def test_no_event_is_published_whose_transaction_is_lost(own_postgres, redis_url):
    """With synchronous_commit=off the server may forget commits, but none that is in a stream."""
    async with pipeline(own_postgres.url(), redis_url) as pipe:
        assert await lost_commits(pipe, own_postgres, PostgresSource) == [1]
        assert await pipe.seqs() == {"k": [1]}
        await pipe.write(await pipe.connect(), "k", 2)
        await pipe.settle(await pipe.loaded())
        assert await pipe.seqs() == {"k": [1, 2]}


@asynchronous
async def test_without_the_flush_a_lost_transaction_is_published(own_postgres, redis_url):
    """The trap is real: the same crash, seen by a source that does not wait for the log."""
    async with pipeline(own_postgres.url(), redis_url) as pipe:
        assert await lost_commits(pipe, own_postgres, Careless) == []
        assert await pipe.seqs() == {"k": [1]}


async def test_a_killed_server_goes_on_where_it_was(own_postgres, redis_url):
    """What was committed comes; what was open is gone; what was prepared comes when committed."""
    async with pipeline(own_postgres.url(), redis_url) as pipe:
        relay, writer = await pipe.loaded(), await pipe.connect()
        lost, prepared = await pipe.begin(), await pipe.begin()
        await pipe.write(lost, "lost", 1)
        await pipe.write(prepared, "prepared", 1)
        await prepared.execute("prepare transaction 'p'")
        await pipe.write(writer, "k", 1)
        assert await pipe.turn(relay) == 1
        await pipe.write(writer, "k", 2)
        own_postgres.kill()
        with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError)):
            await pipe.turn(relay)
        own_postgres.start()
        await pipe.reconnect()
        relay, writer = await pipe.loaded(), await pipe.connect()
        await pipe.write(writer, "k", 3)
        await pipe.settle(relay)
        await writer.execute("commit prepared 'p'")
        await pipe.settle(relay)
        assert await pipe.seqs() == {"k": [1, 2, 3], "prepared": [1]}
