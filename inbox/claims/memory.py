"""Claims in the memory of this process."""

from __future__ import annotations

import time
from functools import cache
from threading import Lock

from inbox.claims import claim as machine
from inbox.claims.claim import Claim, ClaimOutcome, Record, SettleOutcome, State
from inbox.claims.key import Seconds, check_claim, check_key, outcome, seconds

SWEEP_FROM = 1024
"""As many records are kept before the first sweep for expired ones."""


class SyncMemoryStore:
    """The store itself: a dictionary under a lock that is held for microseconds."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._lock = Lock()
        self._floor = 0
        self._sweep_at = SWEEP_FROM
        # Epoch seconds for people to read, yet no step of the wall clock moves them.
        self._epoch = time.time() - time.monotonic()

    def claim(self, key: str, *, fingerprint: str, token: str, lease: Seconds) -> ClaimOutcome:
        check_claim(key, fingerprint, token)
        length = seconds("lease", lease)
        with self._lock:
            if len(self._records) >= self._sweep_at:
                self._sweep(len(self._records))
                self._sweep_at = max(SWEEP_FROM, 2 * len(self._records))
            before = self._records.get(key)
            answer, after = machine.claim(
                before,
                key=key,
                fingerprint=fingerprint,
                token=token,
                lease=length,
                now=self._now(),
                floor=self._floor,
            )
            self._write(before, after)
            return answer

    def renew(self, claim: Claim, lease: Seconds) -> bool:
        length = seconds("lease", lease)
        with self._lock:
            before = self._records.get(claim.key)
            answer, after = machine.renew(before, claim, lease=length, now=self._now())
            self._write(before, after)
            return answer

    def settle(
        self, claim: Claim, state: State, payload: bytes | None, ttl: Seconds
    ) -> SettleOutcome:
        state, payload = outcome(state, payload)
        length = seconds("ttl", ttl)
        with self._lock:
            before = self._records.get(claim.key)
            answer, after = machine.settle(
                before, claim, state=state, payload=payload, ttl=length, now=self._now()
            )
            self._write(before, after)
            return answer

    def release(self, claim: Claim) -> bool:
        with self._lock:
            before = self._records.get(claim.key)
            answer, after = machine.release(before, claim, now=self._now())
            self._write(before, after)
            return answer

    def peek(self, key: str) -> Record | None:
        check_key(key)
        with self._lock:
            record = self._records.get(key)
            return None if machine.is_absent(record, self._now()) else record

    def forget(self, key: str) -> bool:
        check_key(key)
        with self._lock:
            before = self._records.get(key)
            answer, after = machine.forget(before, now=self._now())
            self._write(before, after)
            return answer

    def purge(self, limit: int = 1000) -> int:
        with self._lock:
            return self._sweep(limit)

    def _now(self) -> float:
        return self._epoch + time.monotonic()

    def _write(self, before: Record | None, after: Record | None) -> None:
        if after is not None and after is not before:
            self._records[after.key] = after

    def _sweep(self, limit: int) -> int:
        now = self._now()
        gone = [record for record in self._records.values() if machine.is_absent(record, now)]
        for record in gone[:limit]:
            del self._records[record.key]
            self._floor = max(self._floor, record.fence)
        return min(limit, len(gone))


class MemoryStore:
    """A ClaimStore for the threads and event loops of one process; gone with it."""

    def __init__(self) -> None:
        self.sync = SyncMemoryStore()

    async def claim(
        self, key: str, *, fingerprint: str, token: str, lease: Seconds
    ) -> ClaimOutcome:
        return self.sync.claim(key, fingerprint=fingerprint, token=token, lease=lease)

    async def renew(self, claim: Claim, lease: Seconds) -> bool:
        return self.sync.renew(claim, lease)

    async def settle(
        self, claim: Claim, state: State, payload: bytes | None, ttl: Seconds
    ) -> SettleOutcome:
        return self.sync.settle(claim, state, payload, ttl)

    async def release(self, claim: Claim) -> bool:
        return self.sync.release(claim)

    async def peek(self, key: str) -> Record | None:
        return self.sync.peek(key)

    async def forget(self, key: str) -> bool:
        return self.sync.forget(key)

    async def purge(self, limit: int = 1000) -> int:
        return self.sync.purge(limit)


@cache
def process_store() -> MemoryStore:
    """The MemoryStore that everything in this process shares unless it is given another."""
    return MemoryStore()
