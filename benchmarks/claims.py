"""What a guard costs: `python -m benchmarks.claims [--seconds N]`.

Two bare round trips are what one writes by hand to run something once: SET NX before, SET after,
with redis-py. Every subject gets a slice of every round; read the ratios, which compare round by
round. Every call of a subject is a new one, unless it says "again".
"""

from __future__ import annotations

import argparse
import asyncio
import platform
from collections.abc import Iterator
from importlib.metadata import version
from itertools import count

import redis.asyncio
from prometheus_client import CollectorRegistry

from benchmarks.report import Target
from benchmarks.rival import ProcessSubject, guarded, powertools
from benchmarks.timing import Subject, Work, measure, times_as_long
from inbox import ClaimStore, MemoryStore, RedisStore, idempotent
from inbox.metrics import Metrics
from projector.embedded import Valkey

LEASE, TTL = 60, 300
MEMORY_LIMIT = 20
"""Microseconds a call."""

TARGETS = (
    Target("g", "b", 1.5),
    Target("gs", "bs", 1.5),
    Target("gs", "p", 1.0),
    Target("gs*", "p*", 1.0),
)


class Calls:
    """The same function, guarded in each way."""

    def __init__(self, name: str) -> None:
        self._users = count(1)
        self._settings = {"name": name, "metrics": Metrics(CollectorRegistry())}

    def first(self, store: ClaimStore) -> Work:
        @idempotent(store=store, ttl=TTL, lease=LEASE, **self._settings)
        async def create_invoice(user: int, amount: int = 100) -> dict[str, int]:
            return {"user": user, "amount": amount}

        async def work() -> None:
            await create_invoice(next(self._users))

        return work

    def again(self, store: ClaimStore) -> Work:
        @idempotent(store=store, ttl=TTL, lease=LEASE, **self._settings)
        async def create_invoice(user: int, amount: int = 100) -> dict[str, int]:
            return {"user": user, "amount": amount}

        async def work() -> None:
            await create_invoice(0)

        return work


def bare(client: redis.asyncio.Redis) -> Work:
    users = count()

    async def work() -> None:
        key = f"bare:{next(users)}"
        await client.set(key, "running", nx=True, px=LEASE * 1000)
        await client.set(key, b'{"user":1,"amount":100}', px=TTL * 1000)

    return work


async def run(seconds: float) -> Iterator[str]:
    with (
        Valkey() as valkey,
        guarded(valkey.url()) as sync,
        powertools(valkey.url()) as rival,
    ):
        client = redis.asyncio.Redis.from_url(valkey.url())
        memory, shared = MemoryStore(), RedisStore(client)
        subjects = [
            Subject("m", "@idempotent, MemoryStore", Calls("m").first(memory)),
            Subject("m*", "  again", Calls("m").again(memory)),
            Subject("b", "two bare round trips", bare(client)),
            Subject("g", "@idempotent, RedisStore", Calls("g").first(shared)),
            Subject("g*", "  again", Calls("g").again(shared)),
            ProcessSubject("bs", "two bare round trips, sync", sync, "bare"),
            ProcessSubject("gs", "@idempotent, RedisStore, sync", sync, "first"),
            ProcessSubject("gs*", "  again", sync, "again"),
        ]
        if not isinstance(rival, str):
            subjects.append(ProcessSubject("p", "powertools, Redis, sync", rival, "first"))
            subjects.append(ProcessSubject("p*", "  again", rival, "again"))
        await measure(subjects, seconds)
        await client.aclose()
    return _lines({subject.name: subject for subject in subjects}, rival)


def _lines(subjects: dict[str, Subject], rival: object) -> Iterator[str]:
    yield f"Python {platform.python_version()}, redis-py {version('redis')}, Valkey from a wheel"
    yield f"{len(subjects['m'].rates)} rounds; medians"
    yield ""
    yield f"{'a call':38}{'calls/s':>9}{'µs':>8}"
    for subject in subjects.values():
        name = f"{subject.name:5}{subject.label}"
        yield f"{name:38}{subject.rate.median:9,.0f}{subject.microseconds:8.1f}"
    yield ""
    yield f"{'target':38}{'measured':>9}   quartiles"
    yield _target(f"m takes less than {MEMORY_LIMIT} µs", *_memory(subjects["m"]), MEMORY_LIMIT)
    for target in TARGETS:
        if target.other in subjects:
            ratio = times_as_long(subjects[target.subject], subjects[target.other])
            claim = f"{target.subject} takes no more than {target.limit} × {target.other}"
            yield _target(claim, ratio.low, ratio.median, ratio.high, target.limit)
    if isinstance(rival, str):
        yield f"not compared with aws-lambda-powertools: {rival}"


def _memory(subject: Subject) -> tuple[float, float, float]:
    rate = subject.rate
    return 1e6 / rate.high, 1e6 / rate.median, 1e6 / rate.low


def _target(claim: str, low: float, median: float, high: float, limit: float) -> str:
    verdict = "PASS" if median <= limit else "MISS"
    return f"{claim:38}{median:9.2f}   {f'{low:.2f} to {high:.2f}':18}{verdict}"


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.claims", description="What a guard costs.")
    parser.add_argument("--seconds", type=float, default=30, help="to measure for, in all (30)")
    for line in asyncio.run(run(parser.parse_args().seconds)):
        print(line)


if __name__ == "__main__":
    main()
