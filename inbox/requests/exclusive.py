"""One action at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from inbox.claims.claim import Claim, Claimed, Running, new_token
from inbox.claims.held import Held
from inbox.claims.key import Seconds, seconds, store_key
from inbox.claims.store import ClaimStore
from inbox.claims.surely import claim_surely, surely
from inbox.errors import ConcurrentActionError, StoreUnavailable
from inbox.metrics import Metrics
from inbox.requests.ids import Id, text_of

log = logging.getLogger(__name__)


@asynccontextmanager
async def exclusive(
    store: ClaimStore, entity: Id, user: Id, ttl: Seconds, name: str, metrics: Metrics
) -> AsyncIterator[Held]:
    """See RequestDedup.exclusive."""
    who = text_of("entity", entity), text_of("user", user)
    length, token, since = seconds("ttl", ttl), new_token(), time.monotonic()
    key = store_key(who[1], scope=name, tenant=who[0])
    outcome = await claim_surely(store, store.claim, key, fingerprint="", token=token, lease=length)
    if not isinstance(outcome, Claimed):
        assert isinstance(outcome, Running)  # it is never settled
        metrics.count("request", name, "busy")
        raise ConcurrentActionError(*who, outcome.retry_after)
    # An earlier holder whose time ran out is nothing unusual here: that is what `ttl` is for.
    metrics.count("request", name, "miss")
    try:
        yield Held(outcome.claim, length, since)
    finally:
        if not await _released(store, outcome.claim):
            metrics.count("request", name, "lost")


async def _released(store: ClaimStore, claim: Claim) -> bool:
    try:
        return await surely(lambda: store.release(claim))
    except StoreUnavailable as exc:  # the action's own outcome is what counts
        log.warning("could not release %s, which ends by itself: %s", claim.key, exc)
        return True
