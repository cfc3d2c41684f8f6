"""`projector status` as people and machines call it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from projector import keys
from projector.embedded.ports import Port
from projector.lease import Leases
from projector.status.report import Backlog, Detached, Group, Holder, Lane, Status
from projector.status.report import Stream as StreamStatus
from projector.status.text import render
from projector.topology import Topic
from support.lanes import Pipeline

SHOWN = """\
outbox      shop, 2026-01-02 03:04:05 UTC
database    ok
redis       ok
projectors  host:1:abcd

LANE  HELD BY      LEASE  BACKLOG     LATE  OLDEST   POSITION
0     host:1:abcd  8.0 s  ~1,234,567  2     2 d 2 h  1.0 s
1     -            -      0           -     -        -         no position yet
2     -            -      ?           -     ?        -         restored

DETACHED TOPIC  LANE  BACKLOG  OLDEST    POSITION
mail            0     7        1 m 30 s  -

STREAM           LENGTH  MEMORY   LAST ID  ADDED
{shop:0}:orders  10      3.0 MiB  9-0      1.0 s
{shop:1}:orders  -       -        -        -      there is no such stream
{shop:2}:orders  1       500 B    9-0      1.0 s  no group reads it

GROUP    STREAM           LAG     PENDING  OLDEST PENDING  IDLE     CONSUMERS  LOST
billing  {shop:0}:orders  ~5,000  3        500 ms          1 m 5 s  1          1,200

HOLDS THE HORIZON  PID  AGE    XIDS       STATE     QUERY
slot standby       -    -      2,000,000  inactive
session app        42   5.0 s  1,000      active    select �[2J
"""


def environment(pipe: Pipeline, redis_url: str) -> dict[str, str]:
    return {
        **os.environ,
        "PROJECTOR_DATABASE_URL": pipe.database.render_as_string(hide_password=False),
        "PROJECTOR_REDIS_URL": redis_url,
        "PROJECTOR_NAME": pipe.name,
    }


@asynccontextmanager
async def status(pipe: Pipeline, redis_url: str, *options: str) -> AsyncIterator[Process]:
    """The command as a process; killed at the end if it still runs."""
    command = [sys.executable, "-m", "projector", "status", *options]
    env = environment(pipe, redis_url)
    process = await asyncio.create_subprocess_exec(*command, env=env, stdout=PIPE, stderr=PIPE)
    try:
        async with asyncio.timeout(30):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_people_see_tables(pipe, redis_url):
    """Lane, stream and group, each with its numbers; the rest is left out where there is none."""
    pipe.topology["orders"] = Topic(groups=("billing",))
    connection = await pipe.connect()
    await pipe.write(connection, "k", 1, "orders")
    await pipe.turn(await pipe.loaded())
    await pipe.write(connection, "k", 2, "orders")
    lease = Leases(pipe.redis, pipe.name, timedelta(seconds=10))
    await lease.hold(0)
    async with status(pipe, redis_url) as process:
        out, err = await process.communicate()
    words = [line.split() for line in out.decode().splitlines()]
    assert (process.returncode, err) == (0, b"")
    assert ["database", "ok"] in words
    assert words[words.index(["redis", "ok"]) + 1] == ["projectors", "none", "alive"]
    (lane,) = [line for line in words if line[:2] == ["0", lease.token]]
    assert lane[4] == "1"  # the backlog
    assert any(line[:2] == [keys.stream(pipe.name, 0, "orders"), "1"] for line in words)
    assert any(line[0] == "billing" and line[2:4] == ["1", "0"] for line in words if line)
    assert b"DETACHED" not in out


async def test_machines_get_json(pipe, redis_url):
    """One object on one line."""
    connection = await pipe.connect()
    await pipe.write(connection, "k", 1)
    async with status(pipe, redis_url, "--json") as process:
        out, _ = await process.communicate()
    found = json.loads(out)
    assert out.count(b"\n") == 1
    assert (found["name"], found["lanes"][0]["backlog"]["events"]) == (pipe.name, 1)


async def test_watching_looks_again_until_ctrl_c(pipe, redis_url):
    """What is new shows; the end is quiet and no error."""
    connection = await pipe.connect()
    await pipe.write(connection, "k", 1)
    async with status(pipe, redis_url, "--json", "--watch") as process:
        assert process.stdout is not None
        first = json.loads(await process.stdout.readline())
        await pipe.write(connection, "k", 2)
        second = json.loads(await process.stdout.readline())
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
    counts = [look["lanes"][0]["backlog"]["events"] for look in (first, second)]
    assert counts == [1, 2]
    assert (process.returncode, err) == (0, b"")


async def test_a_redis_that_is_away_is_no_failure(pipe):
    """It is said, with exit code 0 and without the password."""
    port = Port()
    async with status(pipe, f"redis://:s3cret@127.0.0.1:{port.number}") as process:
        out, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert b"redis       ConnectionError" in out
    assert b"s3cret" not in out
    port.release()


async def test_a_database_that_is_away_is_exit_code_1(pipe, redis_url):
    """What Redis knows is shown all the same."""
    port = Port()
    pipe.database = pipe.database.set(port=port.number)
    async with status(pipe, redis_url) as process:
        out, err = await process.communicate()
    assert (process.returncode, err) == (1, b"")
    assert b"redis       ok" in out
    port.release()


def test_a_bad_url_is_a_usage_error():
    """One line on stderr."""
    options = ["--database-url", "mysql://x", "--redis-url", "redis://x", "--name", "shop"]
    command = [sys.executable, "-m", "projector", "status", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


@pytest.fixture
def everything() -> Status:
    """One of each thing that can be shown."""
    second = timedelta(seconds=1)
    age = timedelta(hours=50)
    detached = Detached("mail", Backlog(7, exact=True, oldest_age=90 * second), None)
    behind = Backlog(1_234_567, exact=False, late=2, oldest_age=age)
    group = Group("billing", 1, 5000, False, 3, "1-1", 0.5 * second, 65 * second, 1200)
    stream = StreamStatus("{shop:0}:orders", 0, "orders", 10, 3 << 20, "9-0", second, (group,))
    missing = StreamStatus("{shop:1}:orders", 1, "orders", problem="there is no such stream")
    unread = StreamStatus("{shop:2}:orders", 2, "orders", 1, 500, "9-0", second)
    short = Holder("session", 41, "app", "active", "select 1", 0.1 * second, 1)
    long = Holder("session", 42, "app", "active", "select \x1b[2J", 5 * second, 1000)
    slot = Holder("slot", None, "standby", "inactive", None, None, 2_000_000)
    return Status(
        name="shop",
        at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        database_problem=None,
        redis_problem=None,
        projectors=("host:1:abcd",),
        lanes=(
            Lane(0, "host:1:abcd", 8 * second, True, second, behind, (detached,)),
            Lane(1, backlog=Backlog(0, exact=True)),
            Lane(2, problem="restored"),
        ),
        streams=(stream, missing, unread),
        horizon=(slot, long, short),
    )


def test_everything_there_is_to_show(everything):
    """Estimates are marked, short transactions left out, and no query moves the cursor."""
    assert render(everything) == SHOWN
