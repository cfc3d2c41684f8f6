"""Who gets a claim."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from typing import Any

import pytest

from inbox.claims.claim import Claimed, Done, Mismatch, Running, State, new_token
from inbox.claims.contract.face import LONG, SHORT, Face, ask, gone, take, taken_over
from inbox.claims.key import store_key
from inbox.claims.store import ClaimStore
from inbox.errors import InboxError

CROWD = 8

TRIPLES = [
    ("k", "", ""),
    ("k", "a", ""),
    ("k", "", "a"),
    ("k", "a:b", "c"),
    ("k", "a", "b:c"),
    ("b:k", "a", ""),
    ("1:ak", "", ""),
    ("0:k", "", ""),
    ("K", "", ""),
    ("ß", "", ""),
    ("ss", "", ""),
    ("é", "", ""),
    ("e\u0301", "", ""),
    ("k ", "", ""),
    ("k\n", "", ""),
    ("k\0", "", ""),
    ("k/../k", "", ""),
    ("*", "", ""),
    ("%", "", ""),
    ("{k}", "", ""),
    ("x" * 5_000, "", ""),
    ("x" * 5_001, "", ""),
    ("x" * 4_999 + "X", "", ""),
    ("鍵" * 500, "", ""),
]
"""(key, scope, tenant): alike, but never the same."""

BAD_CLAIMS: dict[str, dict[str, Any]] = {
    "an empty key": {"key": ""},
    "a key that is no text": {"key": 5},
    "a key that is no Unicode": {"key": "\ud800"},
    "a key that is too long": {"key": "k" * 10_000},
    "a key with a NUL": {"key": "k\0"},
    "an empty token": {"token": ""},
    "a fingerprint that is no text": {"fingerprint": None},
    "a lease of nothing": {"lease": 0},
    "a lease below nothing": {"lease": -1},
    "a lease that never ends": {"lease": float("inf")},
    "a lease that is no number": {"lease": float("nan")},
    "a lease of the wrong type": {"lease": "60"},
    "a lease that is a flag": {"lease": True},
}


class Claiming:
    async def test_the_first_wins_and_the_others_are_told_when_to_ask_again(
        self, claims: Face
    ) -> None:
        """One owner; whoever else asks learns that it runs and when its lease ends."""
        first = await take(claims)
        second = await ask(claims)
        assert isinstance(second, Running)
        assert timedelta(0) < second.retry_after <= timedelta(seconds=LONG)
        record = await claims.peek("k")
        assert record is not None
        assert (record.key, record.status, record.token) == ("k", "in_progress", first.token)
        assert (record.fence, record.fingerprint) == (first.fence, "f")

    async def test_of_many_tasks_one_wins(self, claims: Face) -> None:
        """N tasks at once, one claim."""
        outcomes = await asyncio.gather(*(ask(claims) for _ in range(CROWD)))
        assert sorted(type(outcome).__name__ for outcome in outcomes) == [
            "Claimed",
            *["Running"] * (CROWD - 1),
        ]

    async def test_of_many_threads_one_wins(self, store: ClaimStore) -> None:
        """N threads at once, one claim, round after round."""
        barrier = Barrier(CROWD)
        twin = store.sync

        def claim(key: str) -> bool:
            barrier.wait()
            outcome = twin.claim(key, fingerprint="f", token=new_token(), lease=LONG)
            return isinstance(outcome, Claimed)

        def rounds() -> list[int]:
            with ThreadPoolExecutor(CROWD) as threads:
                return [sum(threads.map(claim, [f"k{number}"] * CROWD)) for number in range(5)]

        assert await asyncio.to_thread(rounds) == [1] * 5

    async def test_both_twins_are_one_store(self, store: ClaimStore) -> None:
        """What is claimed from async code is running for sync code, and the other way round."""
        claim = await take(store)
        twin = store.sync
        other = await asyncio.to_thread(
            lambda: twin.claim("k", fingerprint="f", token=new_token(), lease=LONG)
        )
        assert isinstance(other, Running)
        await asyncio.to_thread(lambda: twin.settle(claim, State.COMPLETED, b"x", LONG))
        assert isinstance(await ask(store), Done)

    async def test_the_same_token_gets_the_same_claim(self, claims: Face) -> None:
        """A request that is sent again, because its answer was lost, makes no second owner."""
        first = await ask(claims, token="mine")
        again = await ask(claims, token="mine")
        assert first == again
        assert isinstance(await ask(claims), Running)

    async def test_the_same_token_asks_again_after_its_lease(self, claims: Face) -> None:
        """Nobody else came: the claim is still the same, and holds again."""
        first = await take(claims, token="mine", lease=SHORT)
        await gone(claims)
        assert await take(claims, token="mine") == first
        assert isinstance(await ask(claims), Running)

    async def test_another_fingerprint_is_a_mismatch_at_once_and_afterwards(
        self, claims: Face
    ) -> None:
        """A key in use for something else is never waited for, and its result never handed out."""
        claim = await take(claims)
        assert await ask(claims, fingerprint="other") == Mismatch("f")
        assert await ask(claims, fingerprint="") == Mismatch("f")
        await claims.settle(claim, State.COMPLETED, b"x", LONG)
        assert await ask(claims, fingerprint="other") == Mismatch("f")
        assert isinstance(await ask(claims), Done)

    async def test_a_mismatch_leaves_the_record_alone(self, claims: Face) -> None:
        """Also with the holder's own token."""
        claim = await take(claims)
        before = await claims.peek("k")
        assert await ask(claims, fingerprint="other", token=claim.token) == Mismatch("f")
        assert await claims.peek("k") == before

    async def test_an_expired_fingerprint_binds_nobody(self, claims: Face) -> None:
        """When the record has expired, the key is free for something else."""
        claim = await take(claims)
        await claims.settle(claim, State.COMPLETED, b"x", SHORT)
        await gone(claims)
        assert (await take(claims, fingerprint="other")).fingerprint == "other"

    async def test_keys_never_collide(self, claims: Face) -> None:
        """Scopes, tenants, delimiters, case, Unicode and very long keys are all told apart."""
        keys = [store_key(key, scope=scope, tenant=tenant) for key, scope, tenant in TRIPLES]
        assert len(set(keys)) == len(TRIPLES)
        owners = [await take(claims, key) for key in keys]
        for key, owner in zip(keys, owners, strict=True):
            record = await claims.peek(key)
            assert record is not None
            assert (record.key, record.token) == (key, owner.token)

    @pytest.mark.parametrize("bad", BAD_CLAIMS.values(), ids=BAD_CLAIMS)
    async def test_a_bad_claim_is_refused_before_anything_is_written(
        self, claims: Face, bad: dict[str, Any]
    ) -> None:
        """A typed error, and the store is as it was."""
        asked = {"key": "k", "fingerprint": "f", "token": "t", "lease": LONG, **bad}
        with pytest.raises(InboxError):
            await claims.claim(asked.pop("key"), **asked)
        assert await claims.peek("k") is None
        await take(claims)

    async def test_bad_outcomes_are_refused_before_anything_is_written(self, claims: Face) -> None:
        """Neither a wrong state, payload, ttl or lease changes the claim."""
        claim = await take(claims)
        before = await claims.peek("k")
        bad: list[Callable[[], Any]] = [
            lambda: claims.settle(claim, State.RUNNING, b"", LONG),
            lambda: claims.settle(claim, State.RELEASED, b"", LONG),
            lambda: claims.settle(claim, "done", b"", LONG),  # type: ignore[arg-type]
            lambda: claims.settle(claim, State.COMPLETED, "text", LONG),  # type: ignore[arg-type]
            lambda: claims.settle(claim, State.COMPLETED, b"", 0),
            lambda: claims.settle(claim, State.COMPLETED, b"", float("nan")),
            lambda: claims.renew(claim, -1),
            lambda: claims.purge(0),
        ]
        for attempt in bad:
            with pytest.raises(InboxError):
                await attempt()
        assert await claims.peek("k") == before

    @pytest.mark.parametrize("length", [0.02, timedelta(milliseconds=20)])
    async def test_leases_and_ttls_below_a_second_work(
        self, claims: Face, length: float | timedelta
    ) -> None:
        """In seconds or as a timedelta; they are not rounded to nothing or to a whole second."""
        first = await take(claims, lease=length)
        record = await claims.peek("k")
        if record is not None:  # it may be over by now
            assert record.expires_at - record.started_at == pytest.approx(0.02, abs=1e-3)
        second = await taken_over(claims)
        assert second.fence > first.fence
        await claims.settle(second, State.COMPLETED, b"x", length)
        await gone(claims)
        await take(claims)
