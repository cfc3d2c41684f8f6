"""Keeps a claim while its effect runs, by renewing it at every third of its lease.

Nothing is started before the first renewal is due: most effects are over by then.
Beats are stopped and waited for, never cancelled: a renewal that has been sent must not arrive
after the claim was settled or released, and nobody could tell what became of a cancelled one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextvars import Token
from types import TracebackType

from inbox.claims.claim import Claim
from inbox.claims.due import loop_starter, thread_starter
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
        self._starter = loop_starter(asyncio.get_running_loop())
        self._starter.add(self, time.monotonic() + self._held.lease / BEATS_PER_LEASE)
        return self._held

    async def __aexit__(
        self,
        _: type[BaseException] | None,
        __: BaseException | None,
        ___: TracebackType | None,
    ) -> None:
        CURRENT.reset(self._token)
        self._held.over = True
        self._starter.remove(self)
        if self._task is not None:
            self._stopped.set()
            await asyncio.wait({self._task})  # unlike `await task`, does not pass a cancel on

    def start(self) -> None:
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
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Held:
        self._token = CURRENT.set(self._held)
        thread_starter().add(self, time.monotonic() + self._held.lease / BEATS_PER_LEASE)
        return self._held

    def __exit__(
        self,
        _: type[BaseException] | None,
        __: BaseException | None,
        ___: TracebackType | None,
    ) -> None:
        CURRENT.reset(self._token)
        self._held.over = True
        thread_starter().remove(self)
        if self._thread is not None:
            self._stopped.set()
            self._thread.join()

    def start(self) -> None:
        name = f"heartbeat {self._held.key}"
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=name, daemon=True)
        self._thread.start()

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
