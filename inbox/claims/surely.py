"""An operation of a store that is not to be left half known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from inbox.claims.claim import Claimed, ClaimOutcome
from inbox.claims.key import Seconds
from inbox.claims.store import ClaimStore

T = TypeVar("T")


async def surely(operation: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run it; cancelled meanwhile, send it again to its end, and then pass the cancellation on.

    Nobody knows whether an operation that was cancelled has been carried out, and every one of a
    store may be sent again. So no key stays claimed for nobody, and no outcome gets lost.
    """
    try:
        return await operation()
    except asyncio.CancelledError:
        await _to_the_end(operation())
        raise


async def _to_the_end(work: Coroutine[Any, Any, object]) -> None:
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            continue  # the first one is passed on
    task.exception()  # seen: the store may be away, and then the lease ends


async def claim_surely(
    store: ClaimStore,
    claim: Callable[..., Coroutine[Any, Any, ClaimOutcome]],
    key: str,
    *,
    fingerprint: str,
    token: str,
    lease: Seconds,
) -> ClaimOutcome:
    """`claim(key, …)`, be it the store's or one that waits. Cancelled meanwhile, it is given back:
    the same token gets the same claim, if it had one."""

    async def give_back() -> None:
        outcome = await store.claim(key, fingerprint=fingerprint, token=token, lease=lease)
        if isinstance(outcome, Claimed):
            await store.release(outcome.claim)

    try:
        return await claim(key, fingerprint=fingerprint, token=token, lease=lease)
    except asyncio.CancelledError:
        await _to_the_end(give_back())
        raise
