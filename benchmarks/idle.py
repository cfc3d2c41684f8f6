"""What an idle projector costs: `python -m benchmarks.idle [--seconds 10]`.

Sixteen lanes, no events: the share of a core that the projector takes, and what it asks of
PostgreSQL and Valkey.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
from dataclasses import dataclass
from typing import Any

import asyncpg  # type: ignore[import-untyped, unused-ignore]
from redis.asyncio import Redis
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.processes import running, usage
from benchmarks.verdict import verdict
from outbox import Outbox
from projector import keys
from projector.connect import redis_of
from projector.embedded import servers

LANES = 16
SHARE = 3.0
"""Percent of a core."""

STATEMENTS = "select xact_commit + xact_rollback from pg_stat_database where datname = $1"
BACKENDS = """
select pid from pg_stat_activity where datname = $1 and pid <> pg_backend_pid()
"""


@dataclass(frozen=True)
class Reading:
    """Counters at one moment."""

    projector: float
    backends: float
    """Seconds of the processor."""
    statements: int
    commands: int

    @classmethod
    async def take(
        cls, process: subprocess.Popen[bytes], connection: Any, database: str, redis: Redis
    ) -> Reading:
        pids = [row["pid"] for row in await connection.fetch(BACKENDS, database)]
        stats: Any = await redis.info("stats")
        return cls(
            usage(process.pid).cpu_seconds,
            sum(usage(pid).cpu_seconds for pid in pids),
            await connection.fetchval(STATEMENTS, database),
            stats["total_commands_processed"],
        )


async def measure(seconds: float) -> None:
    async with servers() as real:
        engine = create_async_engine(real.database_url)
        async with engine.begin() as connection:
            await connection.run_sync(Outbox(name="bench", lanes=LANES).metadata.create_all)
        await engine.dispose()
        url = make_url(real.database_url).set(drivername="postgresql")
        # Watched from another database, so that looking does not count.
        elsewhere = url.set(database="template1").render_as_string(hide_password=False)
        watcher, redis = await asyncpg.connect(elsewhere), redis_of(real.redis_url)
        with running(real.database_url, real.redis_url, "bench", "--lanes", str(LANES)) as process:
            await _settled(redis)
            before = await Reading.take(process, watcher, url.database or "", redis)
            await asyncio.sleep(seconds)
            after = await Reading.take(process, watcher, url.database or "", redis)
            memory = usage(process.pid).resident_mb
        _report(before, after, seconds, memory)
        await watcher.close()
        await redis.aclose()


async def _settled(redis: Redis) -> None:
    """Every lane is held, and the first seconds are over."""
    names = [keys.lease("bench", lane) for lane in range(LANES)]
    while await redis.exists(*names) < LANES:  # noqa: ASYNC110 Redis tells nobody
        await asyncio.sleep(0.05)
    await asyncio.sleep(2)


def _report(before: Reading, after: Reading, seconds: float, memory: float) -> None:
    def rate(field: str) -> float:
        return float(getattr(after, field) - getattr(before, field)) / seconds

    print(verdict(f"projector, {LANES} idle lanes", 100 * rate("projector"), SHARE, " %"))
    print(f"{'its PostgreSQL backends':44}{100 * rate('backends'):10.2f} % of a core")
    print(f"{'transactions in PostgreSQL':44}{rate('statements'):10.1f} /s")
    print(f"{'commands in Valkey':44}{rate('commands'):10.1f} /s")
    print(f"{'resident memory':44}{memory:10.1f} MB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="What an idle projector costs.")
    parser.add_argument("--seconds", type=float, default=10)
    print("an idle projector")
    asyncio.run(measure(parser.parse_args().seconds))


if __name__ == "__main__":
    main()
