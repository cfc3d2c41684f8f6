"""Keeps a claim while its effect runs, by renewing it at every third of its lease.

Nothing is started before the first renewal is due: most effects are over by then.
Beats are stopped and waited for, never cancelled: a renewal that has been sent must not arrive
after the claim was settled or released, and nobody could tell what became of a cancelled one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from contextvars import Token
from functools import cache
from types import TracebackType

from inbox.claims.claim import Claim
from inbox.claims.held import CURRENT, Held
from inbox.claims.key import Seconds, seconds
from inbox.claims.store import ClaimStore, SyncClaimStore

log = logging.getLogger(__name__)

BEATS_PER_LEASE = 3
TRIES_PER_LEASE = 12
"""How often a renewal is tried while the store does not answer."""


class holding:  # noqa: N801  # a context manager
    """`async with holding(store, claim, lease) as held:` the effect. Settle or release after it.

    `since` is the monotonic time at which the claim was asked for; now, if it is left out.
    """

    def __init__(
        self, store: ClaimStore, claim: Claim, lease: Seconds, since: float | None = None
    ) -> None:
        length = seconds("lease", lease)
        self._store = store
        self._held = Held(claim, length, time.monotonic() if since is None else since)
        self._task: asyncio.Task[None] | None = None
        self._token: Token[Held | None]

    async def __aenter__(self) -> Held:
        self._token = CURRENT.set(self._held)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._held.lease / BEATS_PER_LEASE, self._start)
        return self._held

    async def __aexit__(
        self,
        _: type[BaseException] | None,
        __: BaseException | None,
        ___: TracebackType | None,
    ) -> None:
        CURRENT.reset(self._token)
        self._timer.cancel()
        if self._task is not None:
            self._stopped.set()
            await asyncio.wait({self._task})  # unlike `await task`, does not pass a cancel on

    def _start(self) -> None:
        self._stopped = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._beat())

    async def _beat(self) -> None:
        pause = 0.0
        while not await _within(pause, self._stopped):
            pause = await self._renew()

    async def _renew(self) -> float:
        held, sent = self._held, time.monotonic()
        try:
            held.renewed(await self._store.renew(held.claim, held.lease), sent)
        except Exception as exc:  # whatever it is, the next try may do better
            return _failed(held, exc)
        return held.lease / BEATS_PER_LEASE


async def _within(pause: float, stopped: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(pause):
            return await stopped.wait()
    except TimeoutError:
        return False


class holding_sync:  # noqa: N801  # a context manager
    """`with holding_sync(store.sync, claim, lease) as held:` the same for sync code."""

    def __init__(
        self, store: SyncClaimStore, claim: Claim, lease: Seconds, since: float | None = None
    ) -> None:
        length = seconds("lease", lease)
        self._store = store
        self._held = Held(claim, length, time.monotonic() if since is None else since)
        self._stopped = threading.Event()
        self.thread: threading.Thread | None = None

    def __enter__(self) -> Held:
        self._token = CURRENT.set(self._held)
        _starter().add(self, time.monotonic() + self._held.lease / BEATS_PER_LEASE)
        return self._held

    def __exit__(
        self,
        _: type[BaseException] | None,
        __: BaseException | None,
        ___: TracebackType | None,
    ) -> None:
        CURRENT.reset(self._token)
        self._stopped.set()
        _starter().remove(self)
        if self.thread is not None:
            self.thread.join()

    def start(self) -> None:
        name = f"heartbeat {self._held.key}"
        self.thread = threading.Thread(target=self._beat, name=name, daemon=True)
        self.thread.start()

    def _beat(self) -> None:
        pause = 0.0
        while not self._stopped.wait(pause):
            pause = self._renew()

    def _renew(self) -> float:
        held, sent = self._held, time.monotonic()
        try:
            held.renewed(self._store.renew(held.claim, held.lease), sent)
        except Exception as exc:  # whatever it is, the next try may do better
            return _failed(held, exc)
        return held.lease / BEATS_PER_LEASE


def _failed(held: Held, exc: Exception) -> float:
    log.warning("could not renew claim %s, trying again: %s", held.key, exc)
    return held.lease / TRIES_PER_LEASE


class Starter:
    """One thread that starts the beats of claims that are held for long enough to need them.

    A thread for each call would cost more than the call.
    """

    def __init__(self) -> None:
        self._due: dict[holding_sync, float] = {}
        self._changed = threading.Condition()
        self._wakes_at = float("inf")
        self._thread: threading.Thread | None = None

    def add(self, beat: holding_sync, due: float) -> None:
        with self._changed:
            self._due[beat] = due
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)
                self._thread.start()
            elif due < self._wakes_at:
                self._changed.notify()

    def remove(self, beat: holding_sync) -> None:
        """After this, the beat is started or never will be."""
        with self._changed:
            self._due.pop(beat, None)

    def _run(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for beat in [beat for beat, due in self._due.items() if due <= now]:
                    del self._due[beat]
                    beat.start()
                self._wakes_at = min(self._due.values(), default=float("inf"))
                idle = self._wakes_at == float("inf")
                self._changed.wait(None if idle else self._wakes_at - now)


@cache
def _starter() -> Starter:
    os.register_at_fork(after_in_child=_starter.cache_clear)  # threads do not survive a fork
    return Starter()
