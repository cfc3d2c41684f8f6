"""One call of a guarded function: claim, run, settle or release. In async code, and in sync code.

An interruption (a cancelled task, Ctrl-C) may come while the store is being asked, and then nobody
knows whether it acted. Every operation of a store may be sent again, so it is, and the interruption
is passed on afterwards: no key stays claimed for nobody, and no result that was there gets lost.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

from inbox.claims.claim import Claim, Claimed, ClaimOutcome, Running, State, new_token
from inbox.claims.heartbeat import holding, holding_sync
from inbox.claims.held import is_within
from inbox.claims.waiting import claim_or_wait, claim_or_wait_sync
from inbox.errors import ClaimLost, InvalidGuard
from inbox.guard.guard import Guard

T = TypeVar("T")

_NOTHING: Any = object()


async def call(guard: Guard, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    key, token, since = guard.key_of(args, kwargs), new_token(), monotonic()
    try:
        outcome = await guard.store.claim(key, fingerprint="", token=token, lease=guard.lease)
        if guard.waits and isinstance(outcome, Running) and not is_within(key):
            guard.count("wait")
            outcome, since = await _wait(guard, key, token), monotonic()
    except asyncio.CancelledError:
        await _to_the_end(_unclaim(guard, key, token))
        raise
    except Exception:
        guard.count("error")
        raise
    if not isinstance(outcome, Claimed):
        return guard.answer(key, outcome)
    return await _run(guard, outcome, since, args, kwargs)


async def _run(
    guard: Guard, claimed: Claimed, since: float, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    guard.began(claimed)
    claim, result = claimed.claim, _NOTHING
    try:
        async with holding(guard.store, claim, guard.lease, since):
            with guard.metrics.timed("function", guard.name):
                result = await guard.function(*args, **kwargs)
    except GeneratorExit:
        raise  # the coroutine was closed, and can await nothing any more: the lease will end
    except BaseException as exc:
        if result is _NOTHING:
            await _fail(guard, claim, exc)
        else:  # interrupted while the heartbeat was stopped, and that is what counts
            with suppress(ClaimLost):
                await _succeed(guard, claim, result)
        raise
    await _succeed(guard, claim, result)
    return result


async def _fail(guard: Guard, claim: Claim, exc: BaseException) -> None:
    store, payload = guard.store, guard.verdict(exc)
    try:
        if payload is None:
            guard.failed(claim.key, exc, await _surely(lambda: store.release(claim)))
        else:
            settle = store.settle
            kept = await _surely(lambda: settle(claim, State.FAILED, payload, guard.ttl))
            guard.failed(claim.key, exc, kept)
    except Exception as problem:
        guard.failed_unsaved(claim.key, exc, problem)


async def _succeed(guard: Guard, claim: Claim, result: object) -> None:
    payload, problem = guard.results.encode(result)
    settle = guard.store.settle
    try:
        settled = await _surely(lambda: settle(claim, State.COMPLETED, payload, guard.ttl))
    except Exception as exc:
        guard.succeeded_unsaved(claim.key, exc)
    else:
        guard.succeeded(claim.key, settled, problem)


async def _wait(guard: Guard, key: str, token: str) -> ClaimOutcome:
    return await claim_or_wait(
        guard.store,
        key,
        fingerprint="",
        token=token,
        lease=guard.lease,
        timeout=guard.wait_timeout,
    )


async def _unclaim(guard: Guard, key: str, token: str) -> None:
    """The same token gets the same claim, if it had one, and so can give it back."""
    outcome = await guard.store.claim(key, fingerprint="", token=token, lease=guard.lease)
    if isinstance(outcome, Claimed):
        await guard.store.release(outcome.claim)


async def _surely(operation: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        return await operation()
    except asyncio.CancelledError:
        await _to_the_end(operation())
        raise


async def _to_the_end(work: Coroutine[Any, Any, object]) -> None:
    """Whatever comes of it, and however often we are cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            continue  # the first one will be raised by our caller
    task.exception()  # has been seen; the store may be away, and then the lease will end


def call_sync(guard: Guard, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    key, token, since = guard.key_of(args, kwargs), new_token(), monotonic()
    try:
        store = guard.store.sync
        outcome = store.claim(key, fingerprint="", token=token, lease=guard.lease)
        if guard.waits and isinstance(outcome, Running) and not is_within(key):
            guard.count("wait")
            outcome, since = _wait_sync(guard, key, token), monotonic()
    except Exception:
        guard.count("error")
        raise
    except BaseException:
        _once_more(lambda: _unclaim_sync(guard, key, token))
        raise
    if not isinstance(outcome, Claimed):
        return guard.answer(key, outcome)
    return _run_sync(guard, outcome, since, args, kwargs)


def _run_sync(
    guard: Guard, claimed: Claimed, since: float, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    guard.began(claimed)
    claim, result = claimed.claim, _NOTHING
    try:
        with (
            holding_sync(guard.store.sync, claim, guard.lease, since),
            guard.metrics.timed("function", guard.name),
        ):
            result = _refuse_awaitable(guard, guard.function(*args, **kwargs))
    except BaseException as exc:
        if result is _NOTHING:
            _fail_sync(guard, claim, exc)
        else:
            with suppress(ClaimLost):
                _succeed_sync(guard, claim, result)
        raise
    _succeed_sync(guard, claim, result)
    return result


def _refuse_awaitable(guard: Guard, result: T) -> T:
    if not inspect.isawaitable(result):
        return result
    if inspect.iscoroutine(result):
        result.close()
    raise InvalidGuard(
        f"{guard.name} is not declared async, yet returned something to await, which has not run: "
        "put @idempotent directly on the `async def`, under the other decorators"
    )


def _fail_sync(guard: Guard, claim: Claim, exc: BaseException) -> None:
    store, payload = guard.store.sync, guard.verdict(exc)
    try:
        if payload is None:
            guard.failed(claim.key, exc, _surely_sync(lambda: store.release(claim)))
        else:
            settle = store.settle
            kept = _surely_sync(lambda: settle(claim, State.FAILED, payload, guard.ttl))
            guard.failed(claim.key, exc, kept)
    except Exception as problem:
        guard.failed_unsaved(claim.key, exc, problem)


def _succeed_sync(guard: Guard, claim: Claim, result: object) -> None:
    payload, problem = guard.results.encode(result)
    settle = guard.store.sync.settle
    try:
        settled = _surely_sync(lambda: settle(claim, State.COMPLETED, payload, guard.ttl))
    except Exception as exc:
        guard.succeeded_unsaved(claim.key, exc)
    else:
        guard.succeeded(claim.key, settled, problem)


def _wait_sync(guard: Guard, key: str, token: str) -> ClaimOutcome:
    return claim_or_wait_sync(
        guard.store.sync,
        key,
        fingerprint="",
        token=token,
        lease=guard.lease,
        timeout=guard.wait_timeout,
    )


def _unclaim_sync(guard: Guard, key: str, token: str) -> None:
    store = guard.store.sync
    outcome = store.claim(key, fingerprint="", token=token, lease=guard.lease)
    if isinstance(outcome, Claimed):
        store.release(outcome.claim)


def _surely_sync(operation: Callable[[], T]) -> T:
    try:
        return operation()
    except Exception:
        raise
    except BaseException:
        _once_more(operation)
        raise


def _once_more(operation: Callable[[], object]) -> None:
    with suppress(Exception):  # the interruption is what counts; the lease will end
        operation()
