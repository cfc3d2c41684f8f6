"""A real `projector run` in trouble: servers that die, streams that take nothing."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import uuid4

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from projector import keys
from projector.embedded import Postgres, Valkey
from support.daemons import eventually, projector, same
from support.lanes import pipeline


async def test_redis_dies_and_comes_back(database):
    """With its data; events written meanwhile follow, each once."""
    with Valkey({"appendonly": "yes", "appendfsync": "always"}) as valkey:
        async with pipeline(database, valkey.url()) as pipe:
            connection = await pipe.connect()
            with projector(pipe, valkey.url(), "--lease", "0.5"):
                await pipe.write(connection, "k", 1)
                await eventually(partial(same, pipe, {"k": [1]}))
                valkey.kill()
                for seq in (2, 3):
                    await pipe.write(connection, "k", seq)
                valkey.start()
                await eventually(partial(same, pipe, {"k": [1, 2, 3]}))
            await connection.close()


async def test_redis_comes_back_empty(database):
    """The projector notices by itself, also with nothing to publish, and publishes all again."""
    with Valkey() as valkey:
        async with pipeline(database, valkey.url()) as pipe:
            connection = await pipe.connect()
            with projector(pipe, valkey.url(), "--lease", "0.5", "--checkpoint", "0.2"):
                for seq in (1, 2):
                    await pipe.write(connection, "k", seq)
                await eventually(partial(same, pipe, {"k": [1, 2]}))
                valkey.execute("FLUSHALL")
                await eventually(partial(same, pipe, {"k": [1, 2]}))
            await connection.close()


async def test_postgres_dies_and_comes_back(redis_url):
    """Killed and restarted under a running projector: it goes on by itself."""
    with Postgres() as postgres:
        async with pipeline(postgres.url(), redis_url) as pipe:
            connection = await pipe.connect()
            with projector(pipe, redis_url, "--lease", "0.5"):
                await pipe.write(connection, "k", 1)
                await eventually(partial(same, pipe, {"k": [1]}))
                postgres.kill()
                postgres.start()
                connection = await pipe.connect()
                await pipe.write(connection, "k", 2)
                await eventually(partial(same, pipe, {"k": [1, 2]}))
            await connection.close()


async def test_a_broken_stream_stops_its_own_topic_only(database, redis_url):
    """Others flow meanwhile; readiness names it; mended, it catches up in order."""
    async with pipeline(database, redis_url) as pipe:
        connection = await pipe.connect()
        stream = keys.stream(pipe.name, 0, "bad")
        await pipe.redis.set(stream, "not a stream")
        with projector(pipe, redis_url, "--lease", "0.5", "--http", "127.0.0.1:0") as process:
            port = await asyncio.to_thread(port_of, process)
            for seq in range(1, 21):
                await pipe.write(connection, "k", seq, topic="bad")
                await pipe.write(connection, "k", seq)
            await eventually(partial(same, pipe, {"k": list(range(1, 21))}))
            status, body = await get(port, "/readyz")
            assert status == 503
            assert "bad" in json.dumps(body)
            await pipe.redis.delete(stream)
            await eventually(partial(same, pipe, {"k": list(range(1, 21))}, "bad"))
            await pipe.write(connection, "k", 21, topic="bad")
            await eventually(partial(same, pipe, {"k": list(range(1, 22))}, "bad"))
            await eventually(partial(ready, port))
        await connection.close()


async def ready(port: int) -> bool:
    return (await get(port, "/readyz"))[0] == 200


def port_of(process) -> int:
    for line in iter(process.stderr.readline, b""):
        if found := re.search(rb"\bport=(\d+)", line):
            return int(found[1])
    raise AssertionError("it said no port")


async def get(port: int, path: str) -> tuple[int, object]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


async def test_delayed_events_go_out_when_they_are_due(database, redis_url):
    """And not before."""
    async with pipeline(database, redis_url) as pipe:
        engine = create_engine(pipe.database.set(drivername="postgresql+psycopg"))
        with Session(engine) as session:
            for minutes in (-1, 60):
                due = datetime.now(UTC) + timedelta(minutes=minutes)
                pipe.outbox.emit(
                    session, str(uuid4()), topic="t", key=minutes, data=None, deliver_at=due
                )
            session.commit()
        engine.dispose()
        stream = keys.stream(pipe.name, 0, "t")

        async def arrived() -> bool:
            return await pipe.redis.xlen(stream) == 1

        with projector(pipe, redis_url):
            await eventually(arrived)
        ((_, entry),) = await pipe.redis.xrange(stream)
        assert entry[b"subject"] == b"-1"
