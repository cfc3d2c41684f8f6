"""Consumers as processes: killed, frozen, joining and leaving."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

import inbox
from outbox import Outbox, layout
from outbox.keys import lane_of
from support.daemons import eventually

HERE = Path(__file__).parent


@contextmanager
def process(streams, url: str, target: str = "billing", **more: str) -> Iterator[subprocess.Popen]:
    """`inbox run`, killed at the end if it still runs."""
    settings = {"TEST_NAME": streams.name, "TEST_URL": url, **more}
    running = subprocess.Popen(
        [sys.executable, "-m", "inbox", "run", f"service:{target}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), **settings},
        stderr=subprocess.DEVNULL,
    )
    try:
        yield running
    finally:
        if running.poll() is None:
            running.send_signal(signal.SIGCONT)
            running.kill()
        running.wait()


async def effects(streams) -> list[tuple[str, int, str]]:
    found = await streams.redis.lrange(f"{streams.name}:effects", 0, -1)
    return [(key, int(seq), event_id) for key, seq, event_id in (e.decode().split() for e in found)]


async def handled(streams, count: int) -> bool:
    return len({event_id for _, _, event_id in await effects(streams)}) >= count


async def alive(streams, count: int) -> bool:
    return await streams.redis.zcard(layout.members(streams.name, "billing")) == count


def in_order(found: list[tuple[str, int, str]]) -> bool:
    """Whenever an event is handled for the first time, all before it of its key have been."""
    last: dict[str, int] = defaultdict(int)
    for key, seq, _ in found:
        if seq > last[key] + 1:
            return False
        last[key] = max(last[key], seq)
    return True


async def test_processes_that_are_killed_all_the_time(streams, redis_url):
    """None lost, in order; handled twice only what a dead process had begun."""
    chance = random.Random(11)
    total = 0
    with ExitStack() as stack:
        running = [stack.enter_context(process(streams, redis_url)) for _ in range(2)]
        for round in range(4):
            for seq in range(round * 15 + 1, round * 15 + 16):
                for key in "abcdefgh":
                    await streams.add(key, seq)
                    total += 1
            await eventually(partial(handled, streams, total - 60))
            number = chance.randrange(2)
            running[number].kill()
            running[number] = stack.enter_context(process(streams, redis_url))
        await eventually(lambda: handled(streams, total))
    found = await effects(streams)
    assert in_order(found)
    twice = {e for e, n in Counter(event_id for *_, event_id in found).items() if n > 1}
    begun = Counter(e.decode() for e in await streams.redis.lrange(f"{streams.name}:begun", 0, -1))
    assert twice <= {event_id for event_id, n in begun.items() if n > 1}
    assert sum(begun.values()) - len(begun) <= 4 * 64


async def test_an_event_that_kills_its_process_is_given_up_and_the_others_are_not(
    streams, redis_url
):
    """Five deaths; the entries that were read with it are handled, and not blamed."""
    for seq in range(1, 26):
        await streams.add(f"k{seq}", 1)
    killer = await streams.add("killer", 1, type="killer")
    for seq in range(26, 51):
        await streams.add(f"k{seq}", 1)
    lane = lane_of("killer", streams.lanes)

    async def given_up() -> bool:
        dead = await streams.redis.zrange(layout.dead(streams.name, lane, "billing"), 0, -1)
        return dead == [killer.encode()]

    async def over(running: subprocess.Popen) -> bool:
        return running.poll() is not None or await given_up()

    async def keep_alive() -> None:
        while not await given_up():
            with process(streams, redis_url) as running:
                await eventually(partial(over, running), 60)

    await asyncio.wait_for(keep_alive(), 60)
    with process(streams, redis_url):
        await eventually(lambda: handled(streams, 50))
    assert await streams.redis.llen(f"{streams.name}:deaths") == 5
    other = 1 - lane
    for number in (lane, other):
        assert await streams.redis.zcard(layout.dead(streams.name, number, "billing")) == (
            1 if number == lane else 0
        )


async def test_a_frozen_process_does_no_harm(streams, redis_url):
    """SIGSTOP in the middle, somebody takes over, SIGCONT: nothing twice, nothing out of order,
    but what it was just at."""
    for seq in range(1, 31):
        for key in "abcd":
            await streams.add(key, seq)
    with process(streams, redis_url) as frozen:
        await eventually(lambda: handled(streams, 20))
        frozen.send_signal(signal.SIGSTOP)
        with process(streams, redis_url):
            await eventually(lambda: handled(streams, 120))
            frozen.send_signal(signal.SIGCONT)
            for key in "abcd":
                await streams.add(key, 31)
            await eventually(lambda: handled(streams, 124))
    assert in_order(await effects(streams))


async def test_processes_that_come_and_go(streams, redis_url):
    """Never two handlers of one key at once, never out of order, each event once."""
    chance = random.Random(5)
    total = 0
    with ExitStack() as stack:
        running: list[subprocess.Popen] = []
        for round in range(6):
            for seq in range(round * 10 + 1, round * 10 + 11):
                for key in "abcdefgh":
                    await streams.add(key, seq)
                    total += 1
            if round < 4:
                running.append(stack.enter_context(process(streams, redis_url)))
            else:
                leaving = running.pop(chance.randrange(len(running)))
                leaving.terminate()
            await eventually(partial(handled, streams, total // 2))
        await eventually(lambda: handled(streams, total))
        await eventually(lambda: alive(streams, len(running)))
        for one in running:
            one.terminate()
            assert await asyncio.to_thread(one.wait, 20) == 0
    found = await effects(streams)
    assert len(found) == total
    assert in_order(found)
    assert await streams.redis.llen(f"{streams.name}:overlaps") == 0


async def test_exactly_one_effect_in_the_database(streams, redis_url, database):
    """Killed at random: effects, rows and emitted events agree, once each, in order per key."""
    chance = random.Random(3)
    engine = create_async_engine(database)
    events = Outbox(name="next", lanes=1)
    inbox.tables(events.metadata)
    async with engine.begin() as connection:
        await connection.run_sync(events.metadata.create_all)
        await connection.execute(
            text("create table effects (id serial primary key, key text, seq int)")
        )

    async def done(count: int) -> bool:
        async with engine.connect() as connection:
            return (
                await connection.execute(text("select count(*) from effects"))
            ).scalar() >= count

    total = 0
    more = {"TEST_DATABASE": database}
    with ExitStack() as stack:
        running = [
            stack.enter_context(process(streams, redis_url, "ledger", **more)) for _ in range(2)
        ]
        for round in range(3):
            for seq in range(round * 10 + 1, round * 10 + 11):
                for key in "abcdefgh":
                    await streams.add(key, seq)
                    total += 1
            await eventually(partial(done, total - 40))
            number = chance.randrange(2)
            running[number].kill()
            running[number] = stack.enter_context(process(streams, redis_url, "ledger", **more))
        await eventually(lambda: done(total))
    async with engine.connect() as connection:
        found = [
            tuple(r)
            for r in await connection.execute(text("select key, seq from effects order by id"))
        ]
        emitted = (await connection.execute(text("select count(*) from outbox"))).scalar()
    assert sorted(found) == sorted((key, seq) for key in "abcdefgh" for seq in range(1, 31))
    assert in_order([(key, seq, "") for key, seq in found])
    assert emitted == total
    await engine.dispose()
