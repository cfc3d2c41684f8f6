"""When entries arrive in streams, as a consumer in a process of its own sees it."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis

SPAWN = multiprocessing.get_context("spawn")
IDLE_MS = 200
"""After so long without an entry the consumer hands over what it saw."""
PATIENCE = 30
"""Seconds until every event must have arrived."""


class Arrivals:
    """The other end of a consumer that is blocked in XREAD."""

    def __init__(self, seen: Any) -> None:
        self._seen = seen

    def of(self, events: Sequence[str]) -> dict[str, int]:
        """When each of them arrived, by the clock of `time.monotonic_ns`, which the processes of a
        host share. Blocks until all are there."""
        found: dict[str, int] = {}
        while not found.keys() >= set(events):
            found.update(self._seen.get(timeout=PATIENCE))
        return {event: found[event] for event in events}


@contextmanager
def consumer(url: str, streams: Sequence[str]) -> Iterator[Arrivals]:
    seen: Any = SPAWN.Queue()
    process = SPAWN.Process(target=_consume, args=(url, streams, seen), daemon=True)
    process.start()
    seen.get(timeout=PATIENCE)  # it reads
    try:
        yield Arrivals(seen)
    finally:
        process.kill()
        process.join()


def _consume(url: str, streams: Sequence[str], seen: Any) -> None:
    client = redis.Redis.from_url(url, protocol=2)
    after: dict[Any, Any] = dict.fromkeys(streams, "0")
    found: dict[str, int] = {}
    seen.put({})
    while True:
        reply: Any = client.xread(after, block=IDLE_MS)
        now = time.monotonic_ns()
        for stream, entries in reply:
            after[stream.decode()] = entries[-1][0]
            found.update((entry[b"id"].decode(), now) for _, entry in entries)
        if found and not reply:
            seen.put(found)
            found = {}
