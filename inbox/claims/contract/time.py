"""Clocks, expiry and sweeping."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from inbox.claims.claim import Applied, Done, Running, State
from inbox.claims.contract.face import LONG, SHORT, Face, ask, gone, take, taken_over

HOUR = 3600.0


class Time:
    @pytest.fixture
    def step_clock(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
        """Puts the wall clock of this process forward or back."""
        real = time.time

        def step(seconds: float) -> None:
            monkeypatch.setattr(time, "time", lambda: real() + seconds)

        yield step
        monkeypatch.undo()

    async def test_a_clock_an_hour_ahead_takes_nothing_from_others(
        self, claims: Face, step_clock: Callable[[float], None]
    ) -> None:
        """Neither a lease nor a result ends early because a client's clock is wrong."""
        holder = await take(claims)
        finished = await take(claims, "done")
        await claims.settle(finished, State.COMPLETED, b"x", LONG)
        step_clock(HOUR)
        assert isinstance(await ask(claims), Running)
        assert isinstance(await ask(claims, "done"), Done)
        assert await claims.settle(holder, State.COMPLETED, b"x", LONG) == Applied()

    async def test_a_clock_an_hour_behind_keeps_nothing_alive(
        self, claims: Face, step_clock: Callable[[float], None]
    ) -> None:
        """What was claimed before or after the clock stepped back ends in its time."""
        before = await take(claims, "before", lease=SHORT)
        finished = await take(claims, "done")
        await claims.settle(finished, State.COMPLETED, b"x", SHORT)
        step_clock(-HOUR)
        after = await take(claims, "after", lease=SHORT)
        assert (await taken_over(claims, "before")).fence > before.fence
        assert (await taken_over(claims, "after")).fence > after.fence
        assert (await taken_over(claims, "done")).fence > finished.fence

    async def test_the_record_decides_not_a_sweeper(self, claims: Face) -> None:
        """What has expired is gone for everyone, though nobody has purged it."""
        claim = await take(claims)
        await claims.settle(claim, State.COMPLETED, b"x", SHORT)
        await gone(claims)
        assert not await claims.forget("k")
        await take(claims)

    async def test_purging_keeps_what_is_alive(self, claims: Face) -> None:
        """Leases and results that have not ended are untouched."""
        running = await take(claims, "running")
        done = await take(claims, "done")
        await claims.settle(done, State.COMPLETED, b"x", LONG)
        over = await take(claims, "over", lease=SHORT)
        await gone(claims, "over")
        before = [await claims.peek(key) for key in ("running", "done")]
        await claims.purge()
        assert [await claims.peek(key) for key in ("running", "done")] == before
        assert await claims.renew(running, LONG)
        assert (await take(claims, "over")).fence > over.fence
