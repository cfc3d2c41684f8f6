"""Claims in the memory of a process."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from inbox import Claimed, MemoryStore, Running, new_token
from inbox.claims.contract import ClaimStoreContract
from inbox.claims.memory import SWEEP_FROM, process_store


class TestMemoryStore(ClaimStoreContract):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()


def test_it_works_across_event_loops():
    """One store, two loops one after the other."""
    store = MemoryStore()

    async def claim() -> object:
        return await store.claim("k", fingerprint="f", token=new_token(), lease=60)

    assert isinstance(asyncio.run(claim()), Claimed)
    assert isinstance(asyncio.run(claim()), Running)


def test_it_does_not_grow_for_ever():
    """Expired records are swept away by the claims that follow, without a purge."""
    store = MemoryStore().sync
    for number in range(3 * SWEEP_FROM):
        outcome = store.claim(f"k{number}", fingerprint="f", token=new_token(), lease=60)
        assert isinstance(outcome, Claimed)
        store.release(outcome.claim)
    assert store.purge(10 * SWEEP_FROM) <= SWEEP_FROM


def test_threads_that_are_switched_all_the_time_have_one_winner():
    """Each key one, however the interpreter cuts the threads that race for all of them."""
    store, barrier = MemoryStore().sync, Barrier(4)
    keys = [f"k{number}" for number in range(10_000)]

    def race(_: int) -> int:
        barrier.wait()
        asked = (store.claim(key, fingerprint="f", token=new_token(), lease=60) for key in keys)
        return sum(isinstance(outcome, Claimed) for outcome in asked)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert sum(threads.map(race, range(4))) == len(keys)
    finally:
        sys.setswitchinterval(interval)


def test_a_process_has_one_shared_store():
    """What is given no store shares one."""
    assert process_store() is process_store()
