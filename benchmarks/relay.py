"""What relaying costs: catching up on a backlog, against a bare loop that only writes to Redis.

python -m benchmarks.relay [--events 200000] [--rounds 3]

One run, ratios: in each round the bare loop and the projector publish the same entries, one after
the other, and the median of the rounds' ratios counts.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any

import hiredis
from redis.asyncio import Redis
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outbox import Outbox
from projector.connect import redis_of
from projector.daemon import Projector
from projector.embedded import servers
from projector.settings import Settings

DATA = '{"order":12345,"customer":"customer-17","total":4200,"currency":"EUR","lines":3}'
BATCH = 1_000
FILL = text(
    """
    INSERT INTO outbox (lane, event_id, topic, type, key, seq, data, content_type)
    SELECT n % :lanes, gen_random_uuid(), 'orders', 'order.placed', 'order-' || n, n,
           convert_to(:data, 'UTF8'), 'application/json'
      FROM generate_series(1, :count) AS n
    """
)


async def bare_loop(redis: Redis, count: int) -> float:
    """Packs and writes a thousand XADDs at a time, with the fields of a real entry."""
    fields = ("id", "01890000-0000-7000-8000-000000000001", "source", "bench")
    fields += ("type", "order.placed", "subject", "order-1", "time", "2026-01-01T00:00:00.000000Z")
    fields += ("datacontenttype", "application/json", "data", DATA, "sequence", "1")
    pool: Any = redis.connection_pool
    connection = await pool.get_connection()
    began = time.perf_counter()
    for _ in range(count // BATCH):
        packed = [hiredis.pack_command(("XADD", "bare", "*", *fields)) for _ in range(BATCH)]
        await connection.send_packed_command(b"".join(packed))
        for _ in range(BATCH):
            await connection.read_response()
    seconds = time.perf_counter() - began
    await pool.release(connection)
    return count / seconds


async def relay(engine: AsyncEngine, redis: Redis, count: int, lanes: int) -> float:
    """The projector from a backlog to an empty one."""
    projector = Projector(engine, redis, Settings(name="bench", lanes=lanes))
    began = time.perf_counter()
    published = await projector.drain()
    seconds = time.perf_counter() - began
    assert published == count, f"{published} of {count} events"
    return count / seconds


async def measure(count: int, lanes: int, rounds: int) -> None:
    async with servers(postgres={"fsync": "on"}) as real:
        engine, redis = create_async_engine(real.database_url), redis_of(real.redis_url)
        outbox = Outbox(name="bench", lanes=lanes)
        async with engine.begin() as connection:
            await connection.run_sync(outbox.metadata.create_all)
            await connection.execute(FILL, {"lanes": lanes, "count": count, "data": DATA})
        bare, ours = [], []
        for _ in range(rounds):
            await redis.flushall()
            bare.append(await bare_loop(redis, count))
            await redis.flushall()
            ours.append(await relay(engine, redis, count, lanes))
        ratio = statistics.median(o / b for o, b in zip(ours, bare, strict=True))
        verdict = "PASS" if ratio >= 0.5 else "MISS"
        print(
            f"{lanes} lane(s): relay {statistics.median(ours):>9,.0f}/s   "
            f"bare loop {statistics.median(bare):>9,.0f}/s   ratio {ratio:.2f}   "
            f"at least 0.50: {verdict}",
            flush=True,
        )
        await redis.aclose()
        await engine.dispose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{arguments.events:,} events of {len(DATA)} bytes, medians of {arguments.rounds} rounds")
    for lanes in (1, 8):
        asyncio.run(measure(arguments.events, lanes, arguments.rounds))


if __name__ == "__main__":
    main()
