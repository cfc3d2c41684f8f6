"""Leases, those who outlive them, and fences."""

from __future__ import annotations

import pytest

from inbox.claims.claim import Applied, Claim, Claimed, Done, Lost, Running, State
from inbox.claims.contract.face import (
    LONG,
    SHORT,
    Face,
    ask,
    eventually,
    gone,
    take,
    taken_over,
)
from inbox.claims.store import ClaimStore


class Leases:
    sweeps_itself = False
    """The store's server removes expired records on its own: a purge finds nothing to do."""

    async def test_a_takeover_waits_for_the_lease(self, claims: Face) -> None:
        """By the store's own clock, the successor begins when the lease was over, not before."""
        claim = await take(claims)
        record = await claims.peek("k")
        assert record is not None
        assert await claims.renew(claim, 0.2)
        await taken_over(claims)
        successor = await claims.peek("k")
        assert successor is not None
        assert successor.started_at >= record.heartbeat + 0.2

    async def test_a_takeover_is_called_one(self, claims: Face) -> None:
        """Only where an earlier holder has neither settled nor released."""
        first = await ask(claims, lease=SHORT)
        assert isinstance(first, Claimed)
        assert not first.taken_over

        await gone(claims)
        second = await ask(claims)
        assert isinstance(second, Claimed)
        assert second.taken_over
        await claims.release(second.claim)
        third = await ask(claims)
        assert isinstance(third, Claimed)
        assert not third.taken_over

    async def test_renewing_keeps_the_claim(self, claims: Face) -> None:
        """Renewed, it is still running after its first lease; and it counts from the renewal."""
        claim = await take(claims, lease=LONG)
        first = await claims.peek("k")
        assert first is not None
        assert await claims.renew(claim, 2 * LONG)
        renewed = await claims.peek("k")
        assert renewed is not None
        assert renewed.expires_at == pytest.approx(renewed.heartbeat + 2 * LONG, abs=0.01)
        assert renewed.heartbeat >= first.heartbeat
        assert (renewed.started_at, renewed.fence) == (first.started_at, first.fence)

        assert await claims.renew(await take(claims, "short", lease=0.2), LONG)
        await taken_over(claims, "clock", lease=0.2)
        await taken_over(claims, "clock")  # so much time has passed
        assert isinstance(await ask(claims, "short"), Running)

    async def test_a_lease_can_be_cut_short(self, claims: Face) -> None:
        """A renewal sets the end, it does not add."""
        claim = await take(claims)
        assert await claims.renew(claim, SHORT)
        await taken_over(claims)

    async def test_a_late_owner_that_nobody_replaced_is_not_too_late(self, claims: Face) -> None:
        """The lease is over, but nobody came: it may still be renewed, and settled."""
        claim = await take(claims, lease=SHORT)
        await gone(claims)
        assert await claims.renew(claim, SHORT)
        await gone(claims)
        assert await claims.settle(claim, State.COMPLETED, b"late", LONG) == Applied()
        assert isinstance(await ask(claims), Done)

    @pytest.mark.parametrize("fingerprint", ["f", "another"])
    async def test_a_zombie_cannot_touch_its_successor(
        self, claims: Face, fingerprint: str
    ) -> None:
        """Renew, settle and release of the old owner are refused, with the same fingerprint too."""
        zombie = await take(claims, lease=SHORT)
        successor = await taken_over(claims, fingerprint=fingerprint)
        before = await claims.peek("k")
        await self._refused(claims, zombie)
        assert await claims.peek("k") == before

        assert await claims.settle(successor, State.COMPLETED, b"good", LONG) == Applied()
        before = await claims.peek("k")
        await self._refused(claims, zombie)
        assert await claims.peek("k") == before
        assert await claims.settle(zombie, State.COMPLETED, b"good", LONG) == Lost()

    async def test_a_zombie_cannot_touch_what_its_successor_gave_back(self, claims: Face) -> None:
        """Refused as well when the key is free again."""
        zombie = await take(claims, lease=SHORT)
        successor = await taken_over(claims)
        await claims.release(successor)
        await self._refused(claims, zombie)
        assert await claims.peek("k") is None

    async def _refused(self, claims: Face, zombie: Claim) -> None:
        assert not await claims.renew(zombie, LONG)
        assert await claims.settle(zombie, State.FAILED, b"bad", LONG) == Lost()
        assert not await claims.release(zombie)

    async def test_a_token_alone_is_no_proof(self, claims: Face) -> None:
        """A claim that was given back, and claimed anew with its token, is another claim."""
        first = await take(claims, token="same")
        await claims.release(first)
        second = await take(claims, token="same")
        assert second.fence > first.fence
        await self._refused(claims, first)
        assert await claims.renew(second, LONG)

    @pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED])
    async def test_renewing_never_revives_a_finished_record(
        self, claims: Face, state: State
    ) -> None:
        """Neither while it is kept nor when it has expired."""
        claim = await take(claims)
        await claims.settle(claim, state, b"x", LONG)
        before = await claims.peek("k")
        assert not await claims.renew(claim, 10 * LONG)
        assert await claims.peek("k") == before

        claim = await take(claims, "short")
        await claims.settle(claim, state, b"x", SHORT)
        await gone(claims, "short")
        assert not await claims.renew(claim, LONG)
        assert await claims.peek("short") is None

    async def test_a_renewal_just_before_the_end_does_not_hinder_it(self, claims: Face) -> None:
        """A heartbeat that lands right before settle or release takes nothing from its owner."""
        claim = await take(claims)
        assert await claims.renew(claim, LONG)
        assert await claims.settle(claim, State.COMPLETED, b"x", LONG) == Applied()
        claim = await take(claims, "other")
        assert await claims.renew(claim, LONG)
        assert await claims.release(claim)

    async def test_the_fence_only_grows(self, claims: Face) -> None:
        """Across release, takeover, expiry, being forgotten and being purged."""
        fences = []

        async def next_claim() -> Claim:
            claim = await taken_over(claims)
            fences.append(claim.fence)
            return claim

        for _ in range(20):
            await claims.release(await next_claim())
        await claims.renew(await next_claim(), SHORT)
        await claims.settle(await next_claim(), State.COMPLETED, b"x", SHORT)
        await next_claim()
        await claims.forget("k")
        await claims.settle(await next_claim(), State.FAILED, b"x", SHORT)
        await gone(claims)
        await next_claim()
        assert fences == sorted(set(fences))

    async def test_the_fence_grows_though_nothing_remembers_it(self, store: ClaimStore) -> None:
        """Across a purge of what was released, what ran out and what was done."""
        released, over, done = [await take(store, key, lease=SHORT) for key in ("r", "o", "d")]
        await store.release(released)
        await store.settle(done, State.COMPLETED, b"x", SHORT)
        for key in ("o", "d"):
            await gone(store, key)
        purged = 0

        async def all_purged() -> bool:
            nonlocal purged
            purged += await store.purge()
            return self.sweeps_itself or purged == 3

        await eventually(all_purged)
        for claim in (released, over, done):
            assert (await take(store, claim.key)).fence > claim.fence
