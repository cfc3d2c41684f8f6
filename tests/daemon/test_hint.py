"""LISTEN as a hint: it ends a wait, and is missed by nobody when it is gone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

from outbox import Outbox
from projector import keys
from projector.connect import engine_of, redis_of
from projector.daemon import Projector
from projector.hint import Hint
from projector.settings import Settings
from support.daemons import projector as process
from support.lanes import Pipeline, client, pipeline
from support.waiting import until

LONG = 600.0
"""Seconds between two polls: whatever arrives sooner was hinted at."""
NEVER = {"poll_busy": LONG, "poll_idle": LONG, "poll_linger": 0}

LISTENING = "select pid from pg_stat_activity where query like 'LISTEN%' and pid <> all($1::int[])"


async def listeners(pipe: Pipeline, *but: int) -> list[int]:
    connection = pipe.source._connection
    return [row[0] for row in await connection.fetch(LISTENING, list(but))]


def url_of(pipe: Pipeline) -> str:
    return pipe.database.render_as_string(hide_password=False)


@asynccontextmanager
async def running(pipe: Pipeline, redis_url: str, **settings: Any) -> AsyncIterator[Projector]:
    """A projector that holds its lanes; stopped at the end, at once."""
    engine, redis = engine_of(url_of(pipe)), redis_of(redis_url)
    chosen = Settings(name=pipe.name, lanes=pipe.outbox.lanes, notify=True, **settings)
    made = Projector(engine, redis, chosen)
    task = asyncio.create_task(made.run())
    try:
        await until(lambda: _true(made.telemetry.health().ready))
        yield made
    finally:
        made.stop()
        async with asyncio.timeout(5):
            await task
        await redis.aclose()
        await engine.dispose()


async def _true(value: bool) -> bool:
    return value


async def emit(pipe: Pipeline, count: int = 1, notify: bool = True) -> None:
    """So many transactions, one after another."""
    events = Outbox(name=pipe.name, lanes=pipe.outbox.lanes, notify=notify)
    engine = create_async_engine(pipe.database.set(drivername="postgresql+asyncpg"))
    for number in range(count):
        async with async_sessionmaker(engine)() as session, session.begin():
            events.emit(session, "e", topic="t", key=number, data=None)
    await engine.dispose()


async def arrived(pipe: Pipeline) -> int:
    names = [keys.stream(pipe.name, lane, "t") for lane in range(pipe.outbox.lanes)]
    return sum([await pipe.redis.xlen(name) for name in names])


async def test_a_commit_wakes_a_projector_that_hardly_ever_polls(database, redis_url):
    """Also those that are notified while a turn is under way: none waits for the next poll."""
    async with pipeline(database, redis_url, lanes=4) as pipe, running(pipe, redis_url, **NEVER):
        await until(lambda: listeners(pipe))
        await emit(pipe, 50)
        await until(lambda: _equal(arrived(pipe), 50))


async def _equal(found: Any, expected: object) -> bool:
    return bool(await found == expected)


async def test_a_killed_connection_comes_back(database, redis_url, caplog):
    """By itself; the outage is told once, and its end once."""
    caplog.set_level("INFO", "projector.hint")
    async with pipeline(database, redis_url) as pipe, running(pipe, redis_url, **NEVER):
        await until(lambda: listeners(pipe))
        (old,) = await listeners(pipe)
        await pipe.source._connection.execute("select pg_terminate_backend($1)", old)
        await until(lambda: listeners(pipe, old))
        await until(lambda: _true("wake-up hints are back" in caplog.messages))
        await emit(pipe)
        await until(lambda: _equal(arrived(pipe), 1))
    assert [message.partition(":")[0] for message in hints(caplog)] == [
        "no wake-up hints, polling goes on",
        "wake-up hints are back",
    ]


def hints(caplog) -> list[str]:
    return [r.message for r in caplog.records if r.name == "projector.hint"]


async def test_polling_goes_on_without_it(database, redis_url, caplog):
    """While the listening connection cannot be had, events flow, one line tells it, and stop()
    ends the back-off."""
    nowhere = engine_of("postgresql://nobody@127.0.0.1:1/nothing")
    tries: list[object] = []
    event.listen(nowhere.sync_engine, "do_connect", lambda *_: tries.append(1))
    async with pipeline(database, redis_url) as pipe, running(pipe, redis_url) as projector:
        projector._hint._engine = nowhere
        await until(lambda: listeners(pipe))
        (old,) = await listeners(pipe)
        await pipe.source._connection.execute("select pg_terminate_backend($1)", old)
        await until(lambda: _true(len(tries) > 3))
        for count in range(1, 6):
            await emit(pipe)
            await until(lambda count=count: _equal(arrived(pipe), count))
        assert not projector.telemetry.health().problems
    await nowhere.dispose()
    assert len(hints(caplog)) == 1


async def test_a_peer_that_vanished_is_noticed(database, redis_url):
    """A connection that gives no sign of life is replaced by another."""
    async with pipeline(database, redis_url) as pipe:
        engine = engine_of(url_of(pipe))
        hint = Hint(engine, pipe.outbox.channel, ping=0.2)
        task = asyncio.create_task(hint.listen())
        await until(lambda: listeners(pipe))
        (frozen,) = await listeners(pipe)
        os.kill(frozen, signal.SIGSTOP)
        try:
            await until(lambda: listeners(pipe, frozen))
        finally:
            os.kill(frozen, signal.SIGCONT)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await engine.dispose()


async def test_a_connection_that_listened_is_not_given_back(database, redis_url):
    """The engine's next user would be sent our notifications."""
    async with pipeline(database, redis_url) as pipe:
        engine = create_async_engine(pipe.database.set(drivername="postgresql+asyncpg"))
        task = asyncio.create_task(Hint(engine, pipe.outbox.channel).listen())
        await until(lambda: listeners(pipe))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with engine.connect() as connection:
            channels = await connection.execute(text("select pg_listening_channels()"))
            assert channels.all() == []
        await engine.dispose()


async def test_a_hint_given_while_nobody_waits_counts():
    """It ends the next wait, and only that."""
    hint = Hint(create_async_engine("postgresql+asyncpg://"), "c")
    hint.give()
    async with asyncio.timeout(5):
        await hint.wait(LONG)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await hint.wait(LONG)


@pytest.mark.parametrize("how", ["flag", "environment"])
async def test_the_command_listens_when_told_to(database, redis_url, how, monkeypatch):
    """`projector run --notify`, or PROJECTOR_NOTIFY=1."""
    if how == "environment":
        monkeypatch.setenv("PROJECTOR_NOTIFY", "1")
    async with pipeline(database, redis_url) as pipe:
        with process(pipe, redis_url, *(["--notify"] if how == "flag" else [])) as run:
            await until(lambda: listeners(pipe))
            run.terminate()
            assert await asyncio.to_thread(run.wait, 5) == 0


async def test_sqlite_has_nothing_to_listen_to(tmp_path, redis_url):
    """The setting is taken and polling does it all."""
    url, redis = f"sqlite:///{tmp_path}/shop.db", client(redis_url)
    events = Outbox(name=f"s{os.urandom(4).hex()}", lanes=1, notify=True)
    writing = create_engine(url)
    events.metadata.create_all(writing)
    with Session(writing) as session:
        events.emit(session, "e", topic="t", key=1, data=None)
        session.commit()
    writing.dispose()
    engine = engine_of(url)
    projector = Projector(engine, redis, Settings(name=events.name, lanes=1, notify=True))
    task = asyncio.create_task(projector.run())
    await until(lambda: redis.xlen(keys.stream(events.name, 0, "t")))
    projector.stop()
    await task
    await redis.aclose()
    await engine.dispose()
