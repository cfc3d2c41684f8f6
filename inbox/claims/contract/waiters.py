"""Those who wait for somebody else's outcome."""

from __future__ import annotations

import asyncio
import time

import pytest

from inbox.claims.claim import (
    Claim,
    Claimed,
    ClaimOutcome,
    Done,
    Mismatch,
    Running,
    State,
    new_token,
)
from inbox.claims.contract.face import LONG, SHORT, eventually, take
from inbox.claims.key import Seconds
from inbox.claims.store import ClaimStore
from inbox.claims.waiting import claim_or_wait, claim_or_wait_sync


class Counted:
    """A store that tells how often it was asked for a claim."""

    def __init__(self, store: ClaimStore) -> None:
        self._store = store
        self.asked = 0

    async def claim(
        self, key: str, *, fingerprint: str, token: str, lease: Seconds
    ) -> ClaimOutcome:
        self.asked += 1
        return await self._store.claim(key, fingerprint=fingerprint, token=token, lease=lease)


class Waiters:
    @pytest.fixture(params=["async", "sync"])
    def waiter(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    async def wait(
        self,
        store: ClaimStore,
        waiter: str,
        *,
        timeout: float | None = LONG,  # noqa: ASYNC109  # handed on
        fingerprint: str = "f",
    ) -> ClaimOutcome:
        token = new_token()
        if waiter == "async":
            return await claim_or_wait(
                store, "k", fingerprint=fingerprint, token=token, lease=LONG, timeout=timeout
            )
        twin = store.sync
        return await asyncio.to_thread(
            lambda: claim_or_wait_sync(
                twin, "k", fingerprint=fingerprint, token=token, lease=LONG, timeout=timeout
            )
        )

    async def test_a_waiter_gets_the_result(self, store: ClaimStore, waiter: str) -> None:
        """When the holder settles, all who wait get what it saved."""
        claim = await take(store)
        waiting = [asyncio.create_task(self.wait(store, waiter)) for _ in range(3)]
        await self._is_waiting(store)
        assert not any(task.done() for task in waiting)
        await store.settle(claim, State.COMPLETED, b"x", LONG)
        for outcome in await asyncio.gather(*waiting):
            assert isinstance(outcome, Done)
            assert outcome.record.payload == b"x"

    async def test_one_waiter_takes_over_when_the_holder_gives_back(
        self, store: ClaimStore, waiter: str
    ) -> None:
        """After a release one of them runs it, and the others go on waiting for that one."""
        claim = await take(store)
        waiting = [asyncio.create_task(self.wait(store, waiter)) for _ in range(3)]
        await self._is_waiting(store)
        await store.release(claim)
        first, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        (winner,) = first
        outcome = winner.result()
        assert isinstance(outcome, Claimed)
        await store.settle(outcome.claim, State.COMPLETED, b"x", LONG)
        assert all(isinstance(other, Done) for other in await asyncio.gather(*rest))

    async def test_a_waiter_takes_over_when_the_holder_dies(
        self, store: ClaimStore, waiter: str
    ) -> None:
        """A holder that stops renewing is replaced when its lease ends."""
        holder = await take(store, lease=0.2)
        outcome = await self.wait(store, waiter)
        assert isinstance(outcome, Claimed)
        assert outcome.taken_over
        assert outcome.claim.fence > holder.fence

    async def test_a_waiter_with_another_fingerprint_does_not_wait(
        self, store: ClaimStore, waiter: str
    ) -> None:
        """It learns at once that the key is in use for something else."""
        await take(store)
        assert await self.wait(store, waiter, fingerprint="other") == Mismatch("f")

    async def test_time_is_up_while_the_holder_still_runs(
        self, store: ClaimStore, waiter: str
    ) -> None:
        """The waiter is told Running, and does not hold the claim."""
        claim = await take(store)
        assert isinstance(await self.wait(store, waiter, timeout=0.05), Running)
        assert isinstance(await self.wait(store, waiter, timeout=0), Running)
        await store.release(claim)
        await take(store)

    async def test_a_waiter_keeps_its_deadline_under_churn(
        self, store: ClaimStore, waiter: str
    ) -> None:
        """Holders that come and go all the time do not make anyone wait for longer."""
        over = asyncio.Event()
        churn = asyncio.create_task(self._churn(store, await take(store), over))
        started = time.monotonic()
        outcome = await self.wait(store, waiter, timeout=0.3)
        waited = time.monotonic() - started
        over.set()
        await churn
        if isinstance(outcome, Running):
            assert 0.3 <= waited < LONG / 2
        else:
            assert isinstance(outcome, Claimed)  # it came in between two of them

    async def _churn(self, store: ClaimStore, claim: Claim, over: asyncio.Event) -> None:
        """The key changes hands without ever being free for longer than a moment."""
        while not over.is_set():
            await store.release(claim)
            outcome = await store.claim("k", fingerprint="f", token=new_token(), lease=LONG)
            if not isinstance(outcome, Claimed):
                return
            claim = outcome.claim
            await asyncio.sleep(0)  # a store in memory never waits, and would let nobody else run

    async def test_a_waiter_asks_no_more_often_than_it_must(self, store: ClaimStore) -> None:
        """It waits in between, longer and longer, instead of asking all the time."""
        await take(store)
        counted = Counted(store)
        outcome = await claim_or_wait(
            counted,  # type: ignore[arg-type]
            *("k",),
            fingerprint="f",
            token=new_token(),
            lease=LONG,
            timeout=0.3,
        )
        assert isinstance(outcome, Running)
        assert counted.asked <= 60

    async def _is_waiting(self, store: ClaimStore) -> None:
        """Long enough for those who wait to have asked: another lease has passed meanwhile."""
        await take(store, "clock", lease=SHORT)

        async def over() -> bool:
            return await store.peek("clock") is None

        await eventually(over)
