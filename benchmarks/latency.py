"""From commit to stream: `python -m benchmarks.latency [--seconds 10] [--notify]`.

A writer commits one event at a time, at random moments. A consumer in a process of its own is
blocked in XREAD, and a real `projector run` stands between them. The latency of an event is the
time from the return of its commit to the return of the XREAD that brought it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from benchmarks.arrivals import Arrivals, consumer
from benchmarks.processes import running, usage
from benchmarks.verdict import verdict
from outbox import Outbox
from projector import keys
from projector.embedded import servers

LANES = 8
RATES = (100, 500)
POLLING = (1.5, 3.0)
HINTED = (1.0, 2.0)
"""Targets of p50 and p99 in milliseconds: polling alone, and with NOTIFY as a hint."""
FIRST = 28.0
"""The first event after silence: 25 ms between two looks, and 3 for the way."""
SILENCE = 0.3
DATA = {"order": 12345, "customer": "customer-17", "total": 4200, "currency": "EUR", "lines": 3}


class Writer:
    """Commits events, and remembers when each commit returned."""

    def __init__(self, engine: AsyncEngine, events: Outbox) -> None:
        self._engine = engine
        self._events = events
        self._chance = random.Random(1)
        self.committed: dict[str, int] = {}

    async def write(self) -> None:
        async with AsyncSession(self._engine) as session:
            key = self._chance.randrange(1000)
            event = self._events.emit(session, "order.placed", topic="orders", key=key, data=DATA)
            await session.commit()
            self.committed[str(event.id)] = time.monotonic_ns()

    async def flow(self, rate: float, seconds: float) -> None:
        """At random moments, so many a second on average."""
        due = time.monotonic()
        ends = due + seconds
        while due < ends:
            due += self._chance.expovariate(rate)
            await asyncio.sleep(due - time.monotonic())
            await self.write()

    async def now_and_then(self, count: int) -> None:
        """Each after a silence."""
        for _ in range(count):
            await asyncio.sleep(SILENCE * (1 + self._chance.random()))
            await self.write()

    async def latencies(self, arrivals: Arrivals) -> list[float]:
        """In milliseconds, of what was committed since the last time."""
        committed, self.committed = self.committed, {}
        arrived = await asyncio.to_thread(arrivals.of, list(committed))
        return [(arrived[event] - at) / 1e6 for event, at in committed.items()]


async def measure(seconds: float, notify: bool) -> None:
    # The hint is opt-in on both sides: the outbox that gives it and the projector that listens.
    hints = {"notify": True} if notify else {}
    options = ("--notify",) if notify else ()
    async with servers(postgres={"fsync": "on"}) as real:
        engine = create_async_engine(real.database_url)
        events = Outbox(name="bench", lanes=LANES, **hints)
        async with engine.begin() as connection:
            await connection.run_sync(events.metadata.create_all)
        writer = Writer(engine, events)
        streams = [keys.stream("bench", lane, "orders") for lane in range(LANES)]
        with (
            running(real.database_url, real.redis_url, "bench", *options) as process,
            consumer(real.redis_url, streams) as arrivals,
        ):
            await writer.flow(200, 2)
            await writer.latencies(arrivals)  # everybody is warm now
            for rate in RATES:
                before = usage(process.pid).cpu_seconds
                await writer.flow(rate, seconds)
                share = 100 * (usage(process.pid).cpu_seconds - before) / seconds
                _report(f"{rate} events/s", await writer.latencies(arrivals), notify)
                print(f"{'  the projector':44}{share:10.0f} % of a core", flush=True)
            await writer.now_and_then(int(seconds * 2))
            first = await writer.latencies(arrivals)
            print(f"{'after silence, median':44}{statistics.median(first):10.2f} ms")
            print(verdict("after silence, slowest", max(first), FIRST, " ms"), flush=True)
        await engine.dispose()


def _report(label: str, latencies: Sequence[float], notify: bool) -> None:
    cuts = statistics.quantiles(latencies, n=100)
    p50, p99 = HINTED if notify else POLLING
    print(verdict(f"{label}, p50 of {len(latencies):,}", cuts[49], p50, " ms"))
    print(verdict(f"{label}, p99", cuts[98], p99, " ms"), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="From commit to stream.")
    parser.add_argument("--seconds", type=float, default=10, help="for each rate (10)")
    parser.add_argument("--notify", action="store_true", help="with NOTIFY as a hint")
    options = parser.parse_args()
    print(f"from commit to stream, {'with NOTIFY as a hint' if options.notify else 'polling'}")
    asyncio.run(measure(options.seconds, options.notify))


if __name__ == "__main__":
    main()
