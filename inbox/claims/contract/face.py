"""A store as the tests see it, and what they often do with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from inbox.claims.claim import Claim, Claimed, ClaimOutcome, Record, SettleOutcome, State, new_token
from inbox.claims.key import Seconds
from inbox.claims.store import SyncClaimStore

T = TypeVar("T")

LONG = 60.0
SHORT = 0.05
"""A lease or ttl whose end is waited for."""
DEADLINE = 20.0


class Face(Protocol):
    """The methods of a ClaimStore, whichever twin they go to."""

    async def claim(
        self, key: str, *, fingerprint: str, token: str, lease: Seconds
    ) -> ClaimOutcome: ...
    async def renew(self, claim: Claim, lease: Seconds) -> bool: ...
    async def settle(
        self, claim: Claim, state: State, payload: bytes | None, ttl: Seconds
    ) -> SettleOutcome: ...
    async def release(self, claim: Claim) -> bool: ...
    async def peek(self, key: str) -> Record | None: ...
    async def forget(self, key: str) -> bool: ...
    async def purge(self, limit: int = 1000) -> int: ...


class _InThreads:
    def __init__(self, store: SyncClaimStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        return partial(asyncio.to_thread, getattr(self._store, name))


def in_threads(store: SyncClaimStore) -> Face:
    """A SyncClaimStore as tests that are async can use it."""
    return cast(Face, _InThreads(store))


async def ask(
    claims: Face,
    key: str = "k",
    *,
    fingerprint: str = "f",
    token: str | None = None,
    lease: Seconds = LONG,
) -> ClaimOutcome:
    """A claim, by a new owner unless told otherwise."""
    token = token or new_token()
    return await claims.claim(key, fingerprint=fingerprint, token=token, lease=lease)


async def take(claims: Face, key: str = "k", **options: Any) -> Claim:
    """A claim that must succeed."""
    outcome = await ask(claims, key, **options)
    assert isinstance(outcome, Claimed), outcome
    return outcome.claim


async def taken_over(claims: Face, key: str = "k", **options: Any) -> Claim:
    """A claim that must succeed as soon as the holder's lease is over."""

    async def attempt() -> Claim | None:
        outcome = await ask(claims, key, **options)
        return outcome.claim if isinstance(outcome, Claimed) else None

    return await eventually(attempt)


async def gone(claims: Face, key: str = "k") -> None:
    """Wait until nothing binds the key any more."""

    async def attempt() -> bool:
        return await claims.peek(key) is None

    await eventually(attempt)


async def eventually(attempt: Callable[[], Awaitable[T | None]]) -> T:
    """What `attempt` gives, once it gives something true."""
    deadline = time.monotonic() + DEADLINE
    while not (result := await attempt()):
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.005)
    return result
