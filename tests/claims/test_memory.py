"""The claim machine in the memory of a process."""

from __future__ import annotations

from inbox import Applied, Claimed, Done, MemoryStore, Running, State, new_token, store_key
from inbox.claims.heartbeat import holding
from inbox.claims.waiting import claim_or_wait


async def test_one_runs_and_the_others_get_its_result():
    """The way of a claim, from the first call to a waiter's answer."""
    store, key = MemoryStore(), store_key("k", scope="s")
    request = {"fingerprint": "f", "lease": 60}
    first = await store.claim(key, token=new_token(), **request)
    assert isinstance(first, Claimed)
    assert isinstance(await store.claim(key, token=new_token(), **request), Running)
    async with holding(store, first.claim, 60) as held:
        assert not held.lost
    assert await store.settle(first.claim, State.COMPLETED, b"x", ttl=60) == Applied()
    second = await claim_or_wait(store, key, token=new_token(), timeout=5, **request)
    assert isinstance(second, Done)
    assert second.record.result == b"x"
