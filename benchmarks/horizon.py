"""A transaction held open for the whole run: `python -m benchmarks.horizon [--rounds 5]`.

In each round a backlog is written and relayed twice, in turn first: with a transaction that was
open before and still is after, and without. The median of the rounds' ratios counts.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from contextlib import AsyncExitStack

from redis.asyncio import Redis
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from benchmarks.relay import DATA, FILL, relay
from benchmarks.verdict import verdict
from outbox import Outbox
from projector.connect import redis_of
from projector.embedded import servers

LANES = 8
RATIO = 0.95
HELD = text("SELECT pg_current_xact_id(), count(*) FROM pg_class")
"""Takes an xid and, in repeatable read, a snapshot: nothing after it may be vacuumed."""


async def once(engine: AsyncEngine, redis: Redis, count: int, *, held: bool) -> float:
    """Events per second."""
    await redis.flushall()
    async with engine.begin() as connection:
        await connection.execute(text("TRUNCATE outbox"))
    async with AsyncExitStack() as stack:
        if held:
            connection = await stack.enter_async_context(engine.connect())
            await connection.execution_options(isolation_level="REPEATABLE READ")
            await connection.execute(HELD)
        async with engine.begin() as connection:
            await connection.execute(FILL, {"lanes": LANES, "count": count, "data": DATA})
        return await relay(engine, redis, count, LANES)


async def measure(count: int, rounds: int) -> None:
    async with servers(postgres={"fsync": "on"}) as real:
        engine, redis = create_async_engine(real.database_url), redis_of(real.redis_url)
        async with engine.begin() as connection:
            await connection.run_sync(Outbox(name="bench", lanes=LANES).metadata.create_all)
        rates: dict[bool, list[float]] = {True: [], False: []}
        await once(engine, redis, count, held=False)
        for number in range(rounds):
            for held in (number % 2 == 0, number % 2 == 1):
                rates[held].append(await once(engine, redis, count, held=held))
        ratio = statistics.median(h / f for h, f in zip(rates[True], rates[False], strict=True))
        print(f"{'with':44}{statistics.median(rates[True]):10,.0f} events/s")
        print(f"{'without':44}{statistics.median(rates[False]):10,.0f} events/s")
        print(verdict("with : without", ratio, RATIO, least=True), flush=True)
        await redis.aclose()
        await engine.dispose()


def main() -> None:
    parser = argparse.ArgumentParser(description="A transaction held open for the whole run.")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"a transaction held open, {options.events:,} events, {options.rounds} rounds")
    asyncio.run(measure(options.events, options.rounds))


if __name__ == "__main__":
    main()
