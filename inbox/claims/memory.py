"""Claims in the memory of this process."""

from __future__ import annotations

import time
from functools import cache, partial
from threading import Lock
from typing import Any

from inbox.claims import claim as machine
from inbox.claims.claim import Record
from inbox.claims.local import Change, Forget, LocalOperations, Purge, Request
from inbox.claims.operation import AsyncStore, SyncStore

SWEEP_FROM = 1024
"""As many records are kept before the first sweep for expired ones."""


class MemoryStore(AsyncStore):
    """Claims for the threads and event loops of one process; gone with it."""

    def __init__(self) -> None:
        operations, memory = LocalOperations(), Memory()

        async def at_once(request: Request) -> Any:
            return memory.perform(request)  # never waits: its lock is held for microseconds

        super().__init__(operations, at_once, lambda: SyncStore(operations, memory.perform))


class Memory:
    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._lock = Lock()
        self._sweep_at = SWEEP_FROM
        # Epoch seconds for people to read, yet no step of the wall clock moves them.
        self._epoch = time.time() - time.monotonic()

    def perform(self, request: Request) -> Any:
        with self._lock:
            now = self._epoch + time.monotonic()
            match request:
                case Change(key, step):
                    return self._change(key, partial(step, now=now), now)
                case Forget(key):
                    return self._change(key, partial(machine.forget, now=now), now)
                case Purge(limit):
                    return self._purge(limit, now)

    def _change(self, key: str, step: Any, now: float) -> Any:
        before = self._records.get(key)
        answer, after = step(before)
        if after is not before:
            if before is None and len(self._records) >= self._sweep_at:
                self._purge(len(self._records), now)
                self._sweep_at = max(SWEEP_FROM, 2 * len(self._records))
            self._records[key] = after
        return answer

    def _purge(self, limit: int, now: float) -> int:
        gone = [key for key, it in self._records.items() if machine.may_be_purged(it, now)]
        for key in gone[:limit]:
            del self._records[key]
        return min(limit, len(gone))


@cache
def process_store() -> MemoryStore:
    """The MemoryStore that everything in this process shares unless it is given another."""
    return MemoryStore()
