"""One timer and one thread begin the heartbeats of all claims."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack
from typing import Any

from inbox import Claimed, MemoryStore, new_token
from inbox.claims.due import Due
from inbox.claims.heartbeat import holding, holding_sync
from support.waiting import until

LEASES = {"later": 0.3, "sooner": 0.06, "last": 0.6}


class Named:
    def __init__(self, started: list[Any]) -> None:
        self.started = started

    def start(self) -> None:
        self.started.append(self)


async def claimed(store: MemoryStore, key: str) -> Any:
    outcome = await store.claim(key, fingerprint="", token=new_token(), lease=LEASES[key])
    assert isinstance(outcome, Claimed)
    return outcome.claim


async def all_beat(store: MemoryStore) -> bool:
    records = [await store.peek(key) for key in LEASES]
    return all(record is not None and record.heartbeat > record.started_at for record in records)


async def test_claims_of_different_leases_in_one_loop():
    """Each is renewed in its time, whichever was there first."""
    store = MemoryStore()
    async with AsyncExitStack() as stack:
        for key, lease in LEASES.items():
            await stack.enter_async_context(holding(store, await claimed(store, key), lease))
        await until(lambda: all_beat(store))


async def test_claims_of_different_leases_in_sync_code():
    """The same, from the one thread."""
    store = MemoryStore()
    with ExitStack() as stack:
        for key, lease in LEASES.items():
            stack.enter_context(holding_sync(store.sync, await claimed(store, key), lease))
        await until(lambda: all_beat(store))


def test_what_is_over_is_not_started_and_wakes_nobody():
    """A removed beat leaves the plan as it is: the next short call must not plan anew."""
    started: list[Any] = []
    due, first, second, third = Due(), Named(started), Named(started), Named(started)
    assert due.add(first, 10)
    due.remove(first)
    assert not due.add(second, 11)
    assert due.add(third, 9)
    due.start(8)
    assert started == []
    due.start(9)
    assert (started, due.wakes_at) == ([third], 11)
    due.start(11)
    assert (started, due.wakes_at) == ([third, second], float("inf"))
