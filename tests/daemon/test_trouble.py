"""A real `projector run` in trouble: servers that die, streams that take nothing."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from outbox.keys import lane_of
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


def narrow_user(valkey: Valkey, *rights: str) -> str:
    """The URL for a user with the rights that the docs name, on these keys only."""
    commands = ("+@all", "-@admin", "-@dangerous")
    valkey.execute("ACL", "SETUSER", "narrow", "on", ">word", *commands, *rights)
    return f"redis://narrow:word@127.0.0.1:{valkey.port}"


async def test_a_stream_without_rights_stops_its_own_topic_only(database):
    """Checkpoints go on too; with the right granted it catches up in order and rejoins."""
    with Valkey() as valkey:
        async with pipeline(database, valkey.url()) as pipe:
            connection = await pipe.connect()
            stream = keys.stream(pipe.name, 0, "bad")
            lane = f"{{{pipe.name}:0}}:"
            url = narrow_user(valkey, f"~{lane}@*", f"~{lane}t", f"~{pipe.name}:@*")
            options = ("--lease", "0.5", "--checkpoint", "0.1", "--http", "127.0.0.1:0")
            with projector(pipe, url, *options) as process:
                port = await asyncio.to_thread(port_of, process)
                for seq in range(1, 11):
                    await pipe.write(connection, "k", seq, topic="bad")
                    await pipe.write(connection, "k", seq)
                await eventually(partial(same, pipe, {"k": list(range(1, 11))}))
                assert await problems(port) == [(0, "bad", "refused")]
                valkey.execute("ACL", "SETUSER", "narrow", f"~{stream}")
                await eventually(partial(same, pipe, {"k": list(range(1, 11))}, "bad"))
                await eventually(partial(ready, port))
                valkey.execute("ACL", "SETUSER", "narrow", "resetkeys", f"~{lane}@*", f"~{lane}t")
                valkey.execute("ACL", "SETUSER", "narrow", f"~{pipe.name}:@*")
                await pipe.write(connection, "k", 11, topic="bad")
                await eventually(partial(says, port, [(0, "bad", "refused")]))
                for seq in range(11, 21):
                    await pipe.write(connection, "k", seq)
                    await eventually(partial(same, pipe, {"k": list(range(1, seq + 1))}))
                assert await problems(port) == [(0, "bad", "refused")]
            await connection.close()


async def test_a_lane_without_rights_waits_by_itself(database):
    """Readiness and metrics name it; the other lane goes on, and so does it, with the right."""
    with Valkey() as valkey:
        async with pipeline(database, valkey.url(), lanes=2) as pipe:
            connection = await pipe.connect()
            first, second = (next(k for k in "abcdef" if lane_of(k, 2) == lane) for lane in (0, 1))
            url = narrow_user(valkey, f"~{{{pipe.name}:0}}:*", f"~{pipe.name}:@*")
            with projector(pipe, url, "--lease", "0.5", "--http", "127.0.0.1:0") as process:
                port = await asyncio.to_thread(port_of, process)
                await pipe.write(connection, first, 1)
                await pipe.write(connection, second, 1)
                await eventually(partial(same, pipe, {first: [1]}))
                assert await problems(port) == [(1, None, "redis_denied")]
                metrics = await page(port, "/metrics")
                assert 'projector_lane_waiting{lane="1",reason="redis_denied"} 1.0' in metrics
                valkey.execute("ACL", "SETUSER", "narrow", f"~{{{pipe.name}:1}}:*")
                await eventually(partial(same, pipe, {first: [1], second: [1]}))
                await eventually(partial(ready, port))
                valkey.execute("ACL", "SETUSER", "narrow", "resetkeys", f"~{{{pipe.name}:0}}:*")
                await pipe.write(connection, second, 2)
                await eventually(partial(says, port, [(1, None, "redis_denied")]))
                await pipe.write(connection, first, 2)
                await eventually(partial(same, pipe, {first: [1, 2], second: [1]}))
                assert "projector_outages_total{" not in await page(port, "/metrics")
            await connection.close()


async def test_the_only_server_away_is_one_outage(database):
    """However many lanes it has, and whichever of them notice: one line in the log, one problem in
    readiness."""
    with Valkey({"appendonly": "yes", "appendfsync": "always"}) as valkey:
        async with pipeline(database, valkey.url(), lanes=8) as pipe:
            connection = await pipe.connect()
            options = ("--lease", "30", "--http", "127.0.0.1:0")  # only publishing tells
            with projector(pipe, valkey.url(), *options) as process:
                port = await asyncio.to_thread(port_of, process)
                written = {str(key): [1] for key in range(30)}
                for key in written:
                    await pipe.write(connection, key, 1)
                await eventually(partial(same, pipe, written))
                valkey.kill()
                for key in written:
                    await pipe.write(connection, key, 2)
                await eventually(partial(says, port, [(None, None, "redis_away")]))
                for _ in range(20):
                    assert await problems(port) == [(None, None, "redis_away")]
                    await asyncio.sleep(0.05)
                valkey.start()
                await eventually(partial(same, pipe, {key: [1, 2] for key in written}))
                await eventually(partial(ready, port))
                process.terminate()
                logged = process.stderr.read().decode()
            warnings = [line for line in logged.splitlines() if "level=warning" in line]
            assert len(warnings) == 1, logged
            await connection.close()


async def problems(port: int) -> list[tuple[object, ...]]:
    _, body = await get(port, "/readyz")
    return [(p["lane"], p["topic"], p["reason"]) for p in body["problems"]]


async def says(port: int, expected: list[tuple[object, ...]]) -> bool:
    return await problems(port) == expected


async def ready(port: int) -> bool:
    return (await get(port, "/readyz"))[0] == 200


def port_of(process) -> int:
    for line in iter(process.stderr.readline, b""):
        if found := re.search(rb"\bport=(\d+)", line):
            return int(found[1])
    raise AssertionError("it said no port")


async def get(port: int, path: str) -> tuple[int, Any]:
    head, _, body = (await page(port, path)).partition("\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


async def page(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return answer


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
