"""What comes of a claim."""

from __future__ import annotations

import pytest

from inbox.claims.claim import Applied, Done, Lost, Record, State
from inbox.claims.contract.face import LONG, SHORT, Face, ask, gone, take

PAYLOADS = {
    "nothing": None,
    "empty": b"",
    "a NUL": b"\0",
    "every byte": bytes(range(256)),
    "a megabyte": b"\xff\0" * 524_288,
}


async def done(claims: Face) -> Record:
    outcome = await ask(claims)
    assert isinstance(outcome, Done), outcome
    return outcome.record


class Settling:
    @pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
    async def test_bytes_come_back_as_they_were(self, claims: Face, payload: bytes | None) -> None:
        """Whatever they are; and a stored None is neither empty nor absent."""
        claim = await take(claims)
        assert await claims.settle(claim, State.COMPLETED, payload, LONG) == Applied()
        record = await done(claims)
        assert record.payload == payload
        assert await claims.peek("k") == record

    async def test_success_and_failure_are_told_apart(self, claims: Face) -> None:
        """COMPLETED replays as a result, FAILED as an error, with the same bytes."""
        for key, state in (("good", State.COMPLETED), ("bad", State.FAILED)):
            claim = await take(claims, key)
            await claims.settle(claim, state, b"x", LONG)
        good, bad = [await claims.peek(key) for key in ("good", "bad")]
        assert good is not None
        assert bad is not None
        assert (good.state, good.status, good.result, good.error) == (
            *(State.COMPLETED, "completed"),
            *(b"x", None),
        )
        assert (bad.state, bad.status, bad.result, bad.error) == (
            *(State.FAILED, "failed"),
            *(None, b"x"),
        )

    async def test_a_record_tells_its_story(self, claims: Face) -> None:
        """Who ran it, when it began and ended, and until when it is kept."""
        claim = await take(claims)
        await claims.renew(claim, LONG)
        await claims.settle(claim, State.COMPLETED, b"x", 100)
        record = await done(claims)
        assert (record.token, record.fence, record.fingerprint) == (claim.token, claim.fence, "f")
        assert record.completed_at is not None
        assert record.started_at <= record.heartbeat <= record.completed_at
        assert record.expires_at == pytest.approx(record.completed_at + 100, abs=0.01)

    async def test_settling_twice_changes_nothing(self, claims: Face) -> None:
        """The owner's second request, after a lost answer, is Applied; the first outcome stands."""
        claim = await take(claims)
        await claims.settle(claim, State.COMPLETED, b"first", LONG)
        before = await claims.peek("k")
        assert await claims.settle(claim, State.COMPLETED, b"first", LONG) == Applied()
        assert await claims.settle(claim, State.FAILED, b"second", LONG) == Applied()
        assert await claims.peek("k") == before

    async def test_settling_after_a_release_is_lost(self, claims: Face) -> None:
        """What was given back cannot be settled, and stays free."""
        claim = await take(claims)
        assert await claims.release(claim)
        assert await claims.settle(claim, State.COMPLETED, b"x", LONG) == Lost()
        assert await claims.peek("k") is None
        await take(claims)

    async def test_releasing_twice_is_as_good_as_once(self, claims: Face) -> None:
        """The second request, after a lost answer, is answered like the first."""
        claim = await take(claims)
        assert await claims.release(claim)
        assert await claims.release(claim)
        successor = await take(claims)
        assert not await claims.release(claim)
        assert await claims.renew(successor, LONG)

    async def test_a_settled_claim_cannot_be_released(self, claims: Face) -> None:
        """The outcome stays."""
        claim = await take(claims)
        await claims.settle(claim, State.COMPLETED, b"x", LONG)
        assert not await claims.release(claim)
        assert (await done(claims)).payload == b"x"

    async def test_settling_after_the_result_has_expired_is_lost(self, claims: Face) -> None:
        """An answer that comes too late does not bring it back."""
        claim = await take(claims)
        await claims.settle(claim, State.COMPLETED, b"x", SHORT)
        await gone(claims)
        assert await claims.settle(claim, State.COMPLETED, b"x", LONG) == Lost()
        assert await claims.peek("k") is None

    async def test_what_is_stored_is_a_copy(self, claims: Face) -> None:
        """A buffer that its owner goes on using, and changes, does not change the record."""
        claim = await take(claims)
        buffer = bytearray(b"before")
        await claims.settle(claim, State.COMPLETED, buffer, LONG)  # type: ignore[arg-type]
        buffer[:] = b"after!"
        assert (await done(claims)).payload == b"before"
        assert type((await done(claims)).payload) is bytes

    async def test_a_forgotten_key_may_run_again(self, claims: Face) -> None:
        """Whether it is running or done; its holder, if any, has lost it."""
        assert not await claims.forget("k")
        first = await take(claims)
        assert await claims.forget("k")
        assert await claims.peek("k") is None
        assert not await claims.renew(first, LONG)
        assert not await claims.release(first)
        assert await claims.settle(first, State.COMPLETED, b"x", LONG) == Lost()
        second = await take(claims)
        await claims.settle(second, State.COMPLETED, b"x", LONG)
        assert await claims.forget("k")
        assert (await take(claims)).fence > second.fence > first.fence
