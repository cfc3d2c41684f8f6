"""Claims that are held while their effect runs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from inbox import Applied, Claim, Claimed, MemoryStore, Running, State, current_claim, new_token
from inbox.claims.heartbeat import holding, holding_sync
from inbox.errors import StoreUnavailable

LEASE = 0.15
ROOMY = 0.6
"""Long enough for a renewal to be in time on a busy machine."""


class Watched(MemoryStore):
    """A MemoryStore whose renewals can be held up, or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False
        self.entered, self.gate = threading.Event(), threading.Event()
        self.gate.set()
        self.renewals = 0
        sync, self._renew = self.sync, self.sync.renew
        sync.renew = self._watched  # type: ignore[method-assign]

    def _watched(self, claim: Claim, lease: Any) -> bool:
        self.entered.set()
        assert self.gate.wait(10)
        if self.fails:
            raise StoreUnavailable("test", "away")
        answer = self._renew(claim, lease)
        self.renewals += 1
        return answer

    async def renew(self, claim: Claim, lease: Any) -> bool:
        return await asyncio.to_thread(self._watched, claim, lease)


@pytest.fixture
def store() -> Watched:
    return Watched()


def take(store: MemoryStore, key: str = "k", lease: float = LEASE) -> Claim:
    outcome = store.sync.claim(key, fingerprint="f", token=new_token(), lease=lease)
    assert isinstance(outcome, Claimed)
    return outcome.claim


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # a flag tells nobody when it changes
            await asyncio.sleep(0.005)


def until_sync(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def outlived(store: MemoryStore) -> bool:
    """More than a lease has passed since the claim."""
    record = store.sync.peek("k")
    return record is None or record.heartbeat > record.started_at + 1.2 * ROOMY


async def test_a_slow_effect_keeps_its_claim(store: Watched):
    """Others are told Running for as long as it takes, and the outcome is saved."""
    claim = take(store, lease=ROOMY)
    async with holding(store, claim, ROOMY) as held:
        await until(lambda: outlived(store))
        other = await store.claim("k", fingerprint="f", token=new_token(), lease=LEASE)
        assert isinstance(other, Running)
        assert not held.lost
    assert await store.settle(claim, State.COMPLETED, b"x", 60) == Applied()


def test_a_slow_effect_keeps_its_claim_in_sync_code(store: Watched):
    """The same, renewed from a thread."""
    claim = take(store, lease=ROOMY)
    with holding_sync(store.sync, claim, ROOMY) as held:
        until_sync(lambda: outlived(store))
        assert store.sync.peek("k") is not None
        assert not held.lost
    assert store.sync.settle(claim, State.COMPLETED, b"x", 60) == Applied()


async def test_a_quick_effect_starts_nothing(store: Watched):
    """Neither a task nor a thread, nor a renewal."""
    before = asyncio.all_tasks(), threading.active_count()
    async with holding(store, take(store), 60):
        assert (asyncio.all_tasks(), threading.active_count()) == before
    with holding_sync(store.sync, take(store, "other"), 60):
        assert threading.active_count() <= before[1] + 1  # the one that starts them all
    assert store.renewals == 0


async def test_a_lost_claim_can_be_seen_inside(store: Watched):
    """Another took over, or somebody forgot it: the next renewal notices."""
    async with holding(store, take(store), LEASE) as held:
        assert current_claim() is held
        assert not held.lost
        store.sync.forget("k")
        await until(lambda: held.lost)
    assert current_claim() is None


def test_a_lost_claim_can_be_seen_inside_sync_code(store: Watched):
    """The same, noticed by the thread."""
    with holding_sync(store.sync, take(store), LEASE) as held:
        assert current_claim() is held
        store.sync.forget("k")
        until_sync(lambda: held.lost)
    assert current_claim() is None


async def test_guards_inside_guards_do_not_mix(store: Watched):
    """The innermost claim is the current one, and the outer one again after it."""
    async with holding(store, take(store, "outer"), 60) as outer:
        with holding_sync(store.sync, take(store, "inner"), 60) as inner:
            assert current_claim() is inner
        assert current_claim() is outer
        assert (outer.key, inner.key) == ("outer", "inner")


async def test_a_store_that_is_away_loses_the_claim_after_a_lease_and_not_before(store: Watched):
    """Failed renewals are tried again; when none has got through for a lease, nobody can be sure;
    and one that gets through, with nobody else there, makes it sure again."""
    store.fails = True
    async with holding(store, take(store, lease=ROOMY), ROOMY) as held:
        await until(store.entered.is_set)
        assert not held.lost
        await until(lambda: held.lost)
        store.fails = False
        await until(lambda: not held.lost)


def test_a_process_that_stood_still_knows_that_it_may_have_lost(store: Watched):
    """Without asking anybody: the lease has passed by its own clock."""
    claim = take(store)
    store.gate.clear()
    with holding_sync(store.sync, claim, LEASE) as held:
        until_sync(lambda: held.lost)
        store.gate.set()
    with holding_sync(store.sync, claim, 60, since=time.monotonic() - 61) as held:
        assert held.lost


async def test_a_renewal_on_its_way_is_waited_for(store: Watched):
    """The guard ends when the renewal has; so it cannot arrive after the outcome was saved."""
    store.gate.clear()
    claim = take(store)

    async def effect() -> None:
        async with holding(store, claim, LEASE):
            await until(store.entered.is_set)

    task = asyncio.create_task(effect())
    await until(store.entered.is_set)
    done, _ = await asyncio.wait({task}, timeout=0.05)
    assert not done
    assert store.renewals == 0
    store.gate.set()
    await task
    assert store.renewals == 1
    assert await store.settle(claim, State.COMPLETED, b"x", 60) == Applied()


async def test_cancelling_the_effect_does_not_cancel_the_renewal(store: Watched):
    """The cancel goes through; the renewal that was sent still ends, and no other follows."""
    store.gate.clear()

    async def effect() -> None:
        async with holding(store, take(store), LEASE):
            await asyncio.sleep(60)

    task = asyncio.create_task(effect())
    await until(store.entered.is_set)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    store.gate.set()
    await until(lambda: store.renewals == 1)


def test_the_thread_is_gone_with_the_guard(store: Watched):
    """A renewal on its way is waited for in sync code too."""
    claim = take(store)
    with holding_sync(store.sync, claim, LEASE):
        until_sync(lambda: store.renewals)
    assert not [it for it in threading.enumerate() if it.name == "heartbeat k"]
    renewals = store.renewals
    assert store.sync.settle(claim, State.COMPLETED, b"x", 60) == Applied()
    assert store.renewals == renewals
