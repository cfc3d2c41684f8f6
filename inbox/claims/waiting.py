"""Claim a key, or wait for what comes of it."""

from __future__ import annotations

import time
from typing import Any

from tenacity import AsyncRetrying, RetryCallState, Retrying, retry_if_result
from tenacity.wait import wait_random_exponential

from inbox.claims.claim import ClaimOutcome, Running
from inbox.claims.key import Seconds, seconds
from inbox.claims.store import ClaimStore, SyncClaimStore

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
"""Between two looks, in seconds: drawn from zero up to these."""


async def claim_or_wait(
    store: ClaimStore,
    key: str,
    *,
    fingerprint: str,
    token: str,
    lease: Seconds,
    timeout: Seconds | None,  # noqa: ASYNC109  # a last look is due when it is up
) -> ClaimOutcome:
    """`store.claim`, again and again while somebody else runs it, but not past `timeout`.

    Done when the holder settles; Claimed when it releases, or dies and its lease ends; Running when
    the time is up, however often the holder has changed meanwhile. None waits as long as it takes.
    """
    retrying = AsyncRetrying(**polling(timeout))
    return await retrying(store.claim, key, fingerprint=fingerprint, token=token, lease=lease)


def claim_or_wait_sync(
    store: SyncClaimStore,
    key: str,
    *,
    fingerprint: str,
    token: str,
    lease: Seconds,
    timeout: Seconds | None,
) -> ClaimOutcome:
    """`claim_or_wait` for sync code."""
    retrying = Retrying(**polling(timeout))
    return retrying(store.claim, key, fingerprint=fingerprint, token=token, lease=lease)


def polling(timeout: Seconds | None) -> dict[str, Any]:
    """What tenacity needs to know to call again while the outcome is Running."""
    deadline = _deadline(timeout)
    back_off = wait_random_exponential(multiplier=FIRST_PAUSE, max=LONGEST_PAUSE)

    def pause(state: RetryCallState) -> float:
        running = _outcome(state)
        assert isinstance(running, Running)
        # No longer than the lease, and up to the deadline: the last look is taken when time is up.
        wait = min(back_off(state), running.retry_after.total_seconds())
        return max(0.0, min(wait, deadline - time.monotonic()))

    return {
        "retry": retry_if_result(lambda outcome: isinstance(outcome, Running)),
        "wait": pause,
        "stop": lambda _: time.monotonic() >= deadline,
        "retry_error_callback": _outcome,
    }


def _deadline(timeout: Seconds | None) -> float:
    if timeout is None:
        return float("inf")
    return time.monotonic() + (seconds("timeout", timeout) if timeout else 0.0)


def _outcome(state: RetryCallState) -> ClaimOutcome:
    assert state.outcome is not None
    outcome: ClaimOutcome = state.outcome.result()
    return outcome
