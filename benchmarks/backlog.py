"""Catching up on a large backlog: `python -m benchmarks.backlog [--events 300000]`.

A real `projector run` works a backlog off. For each tenth of it: events a second, the projector's
time on the processor per event, and its resident memory; all of them should stay flat.
`--events 1000000` shows the curve in steps of 100,000.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from itertools import pairwise
from typing import NamedTuple

from redis.asyncio import Redis
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.processes import running, usage
from benchmarks.relay import DATA, FILL
from benchmarks.verdict import verdict
from outbox import Outbox
from projector import keys
from projector.connect import redis_of
from projector.embedded import servers

LANES = 8
STEPS = 10
MEMORY = 150.0
FLAT = 1.25
"""How much dearer the last third may be than the first."""
GROWTH = 1.15
"""How much more memory the last step may show than the second, which is warm."""


class Step(NamedTuple):
    events: int
    seconds: float
    cpu_seconds: float
    resident_mb: float

    def cost(self, before: Step) -> float:
        """Microseconds of the processor per event."""
        return 1e6 * (self.cpu_seconds - before.cpu_seconds) / (self.events - before.events)

    def rate(self, before: Step) -> float:
        return (self.events - before.events) / (self.seconds - before.seconds)


async def measure(count: int) -> None:
    async with servers(postgres={"fsync": "on"}) as real:
        engine, redis = create_async_engine(real.database_url), redis_of(real.redis_url)
        async with engine.begin() as connection:
            await connection.run_sync(Outbox(name="bench", lanes=LANES).metadata.create_all)
            await connection.execute(FILL, {"lanes": LANES, "count": count, "data": DATA})
        with running(real.database_url, real.redis_url, "bench") as process:
            steps = await _watch(redis, process.pid, count)
        async with engine.connect() as connection:
            await connection.execute(text("select pg_stat_force_next_flush()"))
            changed = await connection.scalar(CHANGED)
        _report(steps, int(changed or 0))
        await redis.aclose()
        await engine.dispose()


CHANGED = text(
    "select n_tup_upd + n_tup_del + n_dead_tup from pg_stat_user_tables where relname = 'outbox'"
)


async def _watch(redis: Redis, pid: int, count: int) -> list[Step]:
    """What it looks like at the first event, and after each tenth."""
    steps: list[Step] = []
    while not steps or steps[-1].events < count:
        events = await _published(redis)
        if events and events >= len(steps) * count / STEPS:
            steps.append(Step(events, time.monotonic(), *usage(pid)))
        await asyncio.sleep(0.005)
    return steps


async def _published(redis: Redis) -> int:
    async with redis.pipeline(transaction=False) as asked:
        for lane in range(LANES):
            asked.xlen(keys.stream("bench", lane, "orders"))
        return sum(await asked.execute())


def _report(steps: list[Step], changed: int) -> None:
    print(f"{'events':>12}{'events/s':>12}{'µs of CPU/event':>18}{'resident MB':>14}")
    pairs = list(pairwise(steps))
    for before, step in pairs:
        rate, cost = step.rate(before), step.cost(before)
        print(f"{step.events:>12,}{rate:>12,.0f}{cost:>18.1f}{step.resident_mb:>14.1f}")
    third = len(pairs) // 3
    dearer = steps[-1].cost(steps[-1 - third]) / steps[third].cost(steps[0])
    growth = steps[-1].resident_mb / steps[2].resident_mb
    print(verdict("cost of an event, last third : first", dearer, FLAT))
    print(verdict("memory, last step : second", growth, GROWTH))
    print(verdict("resident memory", max(s.resident_mb for s in steps), MEMORY, " MB"))
    print(verdict("rows of the outbox changed or left dead", changed, 0), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Catching up on a large backlog.")
    parser.add_argument("--events", type=int, default=300_000)
    count = parser.parse_args().events
    print(f"a backlog of {count:,} events")
    asyncio.run(measure(count))


if __name__ == "__main__":
    main()
