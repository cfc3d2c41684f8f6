"""Interruptions, lost claims, and stores that are away: what is documented for each comes true."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
import redis.asyncio
from prometheus_client import CollectorRegistry

from inbox import (
    ClaimLost,
    ClaimStore,
    CorruptRecord,
    InProgressError,
    MemoryStore,
    RedisStore,
    ReplayedFailure,
    StoreUnavailable,
    current_claim,
    idempotent,
    new_token,
)
from inbox.claims.claim import Claimed
from inbox.metrics import Metrics
from support.calls import Gate, Guarder
from support.proxy import Proxy, proxy
from support.waiting import until


class Hooked:
    """A real store that lets a test in before or after an operation, sync or async."""

    def __init__(self, store: ClaimStore) -> None:
        self._store: Any = store
        self.before: dict[str, Any] = {}
        self.after: dict[str, Any] = {}

    @property
    def sync(self) -> Any:
        return _Sync(self)

    def __getattr__(self, name: str) -> Any:
        async def operation(*args: Any, **kwargs: Any) -> Any:
            await _run_async(self.before.pop(name, None))
            answer = await getattr(self._store, name)(*args, **kwargs)
            await _run_async(self.after.pop(name, None))
            return answer

        return operation


class _Sync:
    def __init__(self, hooked: Hooked) -> None:
        self._hooked = hooked

    def __getattr__(self, name: str) -> Any:
        def operation(*args: Any, **kwargs: Any) -> Any:
            _run(self._hooked.before.pop(name, None))
            answer = getattr(self._hooked._store.sync, name)(*args, **kwargs)
            _run(self._hooked.after.pop(name, None))
            return answer

        return operation


async def _run_async(hook: Any) -> None:
    if hook is not None:
        result = hook()
        if result is not None:
            await result


def _run(hook: Any) -> None:
    if hook is not None:
        hook()


def raising(exc: BaseException) -> Any:
    def hook() -> None:
        raise exc

    return hook


AWAY = StoreUnavailable("test", "gone fishing")


@pytest.fixture
def store() -> Hooked:
    return Hooked(MemoryStore())


@pytest.fixture
def guarded(colour: str, store: Hooked) -> Guarder:
    return Guarder(colour, store)


async def test_store_away_before_the_run(guarded: Guarder, store: Hooked):
    """The function does not run, and the caller is told why."""
    runs = []

    @guarded()
    async def charge(user: int) -> str:
        runs.append(user)
        return "paid"

    store.before["claim"] = raising(AWAY)
    with pytest.raises(StoreUnavailable, match="gone fishing"):
        await charge(1)
    assert not runs
    assert await charge(1) == "paid"


async def test_store_away_after_a_good_run(
    guarded: Guarder, store: Hooked, caplog: pytest.LogCaptureFixture
):
    """It has happened: the caller gets the result, the log a warning; for the length of a lease
    the call is refused, and then it may run again."""
    runs = []

    @guarded(lease=0.1, on_duplicate="wait")
    async def charge(user: int) -> int:
        runs.append(user)
        return len(runs)

    store.before["settle"] = raising(AWAY)
    with caplog.at_level(logging.WARNING):
        assert await charge(1) == 1
    assert "has run, but this could not be saved" in caplog.text
    assert (await charge.inspect(1)).status == "in_progress"
    assert await charge(1) == 2


@pytest.mark.parametrize(("on_failure", "operation"), [("unlock", "release"), ("lock", "settle")])
async def test_store_away_after_a_bad_run(
    guarded: Guarder, store: Hooked, on_failure: str, operation: str
):
    """The function's own exception is what the caller gets, with a note on the claim."""

    @guarded(on_failure=on_failure)
    async def charge(user: int) -> str:
        raise LookupError("no such card")

    store.before[operation] = raising(AWAY)
    with pytest.raises(LookupError, match="no such card") as failed:
        await charge(1)
    assert "could not be given back (the test store did not answer" in failed.value.__notes__[0]
    with pytest.raises(InProgressError):
        await charge(1)


async def take_over(store: Hooked) -> None:
    """As after the end of a lease: somebody else holds the claim."""
    held = current_claim()
    assert held is not None
    assert await store._store.forget(held.key)
    outcome = await store._store.claim(held.key, fingerprint="", token=new_token(), lease=60)
    assert isinstance(outcome, Claimed)
    assert outcome.claim.fence > held.fence


async def test_a_result_after_the_claim_was_lost(guarded: Guarder, store: Hooked):
    """It is not saved, and not returned as if all were well: the successor's will stand."""

    @guarded()
    async def charge(user: int) -> str:
        await take_over(store)
        return "paid"

    with pytest.raises(ClaimLost):
        await charge(1)
    assert (await charge.inspect(1)).status == "in_progress"


@pytest.mark.parametrize("on_failure", ["unlock", "lock"])
async def test_a_failure_after_the_claim_was_lost(guarded: Guarder, store: Hooked, on_failure: str):
    """The exception is kept, a note says that the claim was lost, and the successor keeps his."""

    @guarded(on_failure=on_failure)
    async def charge(user: int) -> str:
        await take_over(store)
        raise LookupError("no such card")

    with pytest.raises(LookupError, match="no such card") as failed:
        await charge(1)
    assert "was lost" in failed.value.__notes__[0]
    assert (await charge.inspect(1)).status == "in_progress"


async def test_the_function_can_see_that_its_claim_is_lost(guarded: Guarder, store: Hooked):
    """The heartbeat finds out, and current_claim().lost tells."""

    @guarded(lease=0.06)
    async def charge(user: int) -> str:
        claim = current_claim()
        assert claim is not None
        assert not claim.lost
        assert claim.fence > 0
        await take_over(store)

        async def is_lost() -> bool:
            return claim.lost

        await until(is_lost)
        raise LookupError("stopped in time")

    with pytest.raises(LookupError, match="stopped in time"):
        await charge(1)


async def test_the_heartbeat_keeps_a_slow_call(guarded: Guarder, store: Hooked):
    """Nobody takes over a call that runs for several leases."""
    runs = []
    slow = Gate()

    @guarded(lease=0.06, on_duplicate="wait")
    async def charge(user: int) -> int:
        runs.append(user)
        await slow.passed()
        return len(runs)

    running = asyncio.create_task(charge(1))
    await slow.is_reached()
    begun = (await charge.inspect(1)).started_at
    waiting = asyncio.create_task(charge(1))

    async def beats_three_leases() -> bool:
        return (await charge.inspect(1)).heartbeat > begun + 0.18

    await until(beats_three_leases)
    slow.open()
    assert (await running, await waiting) == (1, 1)


async def test_a_lease_begins_when_the_waiting_ends(guarded: Guarder, store: Hooked):
    """Whoever waited for longer than a lease has not lost his claim before he begins."""
    runs, slow = [], Gate()

    @guarded(lease=0.5, on_duplicate="wait")
    async def charge(user: int) -> bool:
        runs.append(user)
        if len(runs) == 1:
            await slow.passed()
            raise LookupError
        claim = current_claim()
        assert claim is not None
        return claim.lost

    running = asyncio.create_task(charge(1))
    await slow.is_reached()
    waiting = asyncio.create_task(charge(1))
    begun = (await charge.inspect(1)).started_at

    async def a_lease_has_passed() -> bool:
        return (await charge.inspect(1)).heartbeat > begun + 0.5

    await until(a_lease_has_passed)
    slow.open()
    with pytest.raises(LookupError):
        await running
    assert await waiting is False


async def test_a_cancelled_call_may_be_made_again():
    """Cancelled while it runs: the claim is released before the cancellation goes on."""
    gate, store = Gate(), MemoryStore()

    @idempotent(store=store)
    async def charge(user: int) -> str:
        await gate.passed()
        return "paid"

    running = asyncio.create_task(charge(1))
    await gate.is_reached()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    gate.open()
    assert await charge(1) == "paid"


async def test_a_cancelled_call_that_locks():
    """It may be half done, so it is a failure like others."""
    gate = Gate()

    @idempotent(store=MemoryStore(), on_failure="lock")
    async def charge(user: int) -> str:
        await gate.passed()
        return "paid"

    running = asyncio.create_task(charge(1))
    await gate.is_reached()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(ReplayedFailure, match="CancelledError"):
        await charge(1)


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_cancelled_while_the_claim_is_asked_for(store: Hooked, moment: str):
    """Whether the store had acted or not, the key is not left claimed for nobody."""
    gate = Gate()

    @idempotent(store=store)
    async def charge(user: int) -> str:
        return "paid"

    getattr(store, moment)["claim"] = gate.passed
    running = asyncio.create_task(charge(1))
    await gate.is_reached()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await charge.inspect(1) is None
    assert await charge(1) == "paid"


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_cancelled_while_the_result_is_saved(store: Hooked, moment: str):
    """The cancellation goes on when the result is safe: a repetition gets it."""
    gate, runs = Gate(), []

    @idempotent(store=store)
    async def charge(user: int) -> int:
        runs.append(user)
        return len(runs)

    getattr(store, moment)["settle"] = gate.passed
    running = asyncio.create_task(charge(1))
    await gate.is_reached()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await charge(1) == 1
    assert runs == [1]


async def test_cancelled_again_and_again(store: Hooked):
    """Impatience does not make it skip the release."""
    first, second = Gate(), Gate()

    @idempotent(store=store)
    async def charge(user: int) -> None:
        raise LookupError

    store.before["release"] = first.passed
    running = asyncio.create_task(charge(1))
    await first.is_reached()
    store.before["release"] = second.passed
    running.cancel()
    await second.is_reached()
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()
    second.open()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await charge.inspect(1) is None


async def test_cancelled_while_the_heartbeat_is_stopped(store: Hooked):
    """The result was there, and is saved."""
    renewing, finished = Gate(), Gate()

    @idempotent(store=store, lease=0.06)
    async def charge(user: int) -> str:
        store.before["renew"] = renewing.passed
        await renewing.is_reached()
        finished.open()
        return "paid"

    running = asyncio.create_task(charge(1))
    await finished.is_open()
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    renewing.open()
    assert (await charge.inspect(1)).status == "completed"


async def test_a_closed_coroutine_leaves_its_claim_to_the_lease():
    """It can await nothing any more."""

    @idempotent(store=MemoryStore())
    async def charge(user: int) -> None:
        await asyncio.sleep(60)

    running = charge(1)
    running.send(None)
    running.close()
    assert (await charge.inspect(1)).status == "in_progress"


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("operation", ["claim", "settle"])
def test_ctrl_c_while_the_store_is_asked(store: Hooked, moment: str, operation: str):
    """No key stays claimed for nobody, and no result is lost."""
    runs = []

    @idempotent(store=store)
    def charge(user: int) -> int:
        runs.append(user)
        return len(runs)

    getattr(store, moment)[operation] = raising(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        charge(1)
    assert charge(1) == 1
    assert runs == [1]


def test_ctrl_c_while_it_runs():
    """Released, and passed on."""
    runs = []

    @idempotent(store=MemoryStore())
    def charge(user: int) -> int:
        runs.append(user)
        if len(runs) == 1:
            raise KeyboardInterrupt
        return len(runs)

    with pytest.raises(KeyboardInterrupt):
        charge(1)
    assert charge(1) == 2


async def test_recursion(guarded: Guarder):
    """Other arguments are another call; the same ones are refused at once, also when waiting:
    it would wait for itself."""

    @guarded(on_duplicate="wait", wait_timeout=15)
    async def factorial(n: int) -> int:
        return 1 if n == 0 else n * await factorial(n - 1)

    @guarded(on_duplicate="wait", wait_timeout=15)
    async def endless(n: int) -> None:
        await endless(n)

    assert await factorial(5) == 120
    assert (await factorial.inspect(3)).result == 6
    async with asyncio.timeout(5):
        with pytest.raises(InProgressError):
            await endless(1)


async def test_a_call_left_running_may_wait_when_its_caller_is_done(
    metrics: Metrics, registry: CollectorRegistry
):
    """It is no longer within the call that started it, and waits for whoever runs it now."""
    left, second = Gate(), Gate()
    background, runs = [], []

    @idempotent(store=MemoryStore(), on_duplicate="wait", name="charge", metrics=metrics)
    async def charge(user: int) -> int:
        runs.append(user)
        if len(runs) == 1:
            background.append(asyncio.create_task(later()))
        else:
            await second.passed()
        return len(runs)

    async def later() -> int:
        await left.passed()
        return await charge(1)

    assert await charge(1) == 1
    await charge.forget(1)
    running = asyncio.create_task(charge(1))
    await second.is_reached()
    left.open()

    async def is_waiting() -> bool:
        labels = {"door": "function", "name": "charge", "outcome": "wait"}
        return registry.get_sample_value("inbox_outcomes_total", labels) == 1

    await until(is_waiting)
    second.open()
    assert await running == await background[0] == 2


async def test_nested_guards_do_not_mix(guarded: Guarder):
    """One store, the same arguments, one inside the other: each keeps its own result and claim."""
    claims = []

    @guarded(key=lambda user: f"user:{user}")
    async def inner(user: int) -> str:
        claims.append(current_claim())
        return "inner"

    @guarded(key=lambda user: f"user:{user}")
    async def outer(user: int) -> str:
        before = current_claim()
        assert await inner(user) == "inner"
        assert current_claim() is before
        claims.append(before)
        return "outer"

    assert (await outer(1), await outer(1), await inner(1)) == ("outer", "outer", "inner")
    assert len({claim.key for claim in claims}) == len(claims) == 2
    assert current_claim() is None


async def test_a_failing_inner_guard_leaves_the_outer_one_alone(guarded: Guarder):
    """Each failure is settled under its own key."""

    @guarded(on_failure="lock")
    async def inner(user: int) -> None:
        raise LookupError("inner")

    @guarded()
    async def outer(user: int) -> str:
        try:
            await inner(user)
        except LookupError:
            return "outer"
        return "never"

    assert await outer(1) == "outer"
    assert (await outer.inspect(1)).result == "outer"
    assert (await inner.inspect(1)).status == "failed"


async def test_a_key_that_something_else_uses(guarded: Guarder, store: Hooked):
    """A claim under another fingerprint: refused, not overwritten."""

    @guarded()
    async def charge(user: int) -> str:
        return "paid"

    await charge(1)
    key = (await charge.inspect(1)).key
    await store.forget(key)
    await store.claim(key, fingerprint="other", token=new_token(), lease=60)
    with pytest.raises(CorruptRecord, match="something else"):
        await charge(1)


async def test_trouble_is_counted(
    guarded: Guarder, store: Hooked, metrics: Metrics, registry: CollectorRegistry
):
    """Each kind of it once."""

    @guarded(name="charge", metrics=metrics, lease=0.05, on_duplicate="wait")
    async def charge(user: str) -> None:
        if user == "lost":
            await take_over(store)

    def counted(outcome: str) -> float | None:
        labels = {"door": "function", "name": "charge", "outcome": outcome}
        return registry.get_sample_value("inbox_outcomes_total", labels)

    with pytest.raises(ClaimLost):
        await charge("lost")
    assert counted("lost") == 1
    store.before["claim"] = raising(AWAY)
    with pytest.raises(StoreUnavailable):
        await charge("away")
    store.before["settle"] = raising(AWAY)
    await charge("unsaved")
    assert counted("error") == 2
    await charge("unsaved")
    assert (counted("wait"), counted("takeover")) == (1, 1)
    key = (await charge.inspect("unsaved")).key
    await store.forget(key)
    await store.claim(key, fingerprint="other", token=new_token(), lease=60)
    with pytest.raises(CorruptRecord):
        await charge("unsaved")
    assert counted("conflict") == 1


@pytest.fixture
async def shaky(redis_url: str) -> AsyncIterator[tuple[RedisStore, Proxy]]:
    async with proxy(redis_url) as wire, redis.asyncio.Redis.from_url(wire.url) as client:
        store = RedisStore(client, f"{uuid4().hex}:")
        await store.peek("k")
        yield store, wire


@pytest.mark.parametrize("what", ["request", "reply"])
@pytest.mark.parametrize("after", [0, 1])
async def test_a_lost_packet_changes_nothing(
    shaky: tuple[RedisStore, Proxy], what: Any, after: int
):
    """The claim or the settling, on its way there or back: the call runs once, and is saved."""
    store, wire = shaky
    runs = []

    @idempotent(store=store)
    async def charge(user: int) -> int:
        runs.append(user)
        return len(runs)

    wire.lose(what, after)
    assert await charge(1) == 1
    assert wire.lost
    assert await charge(1) == 1
    assert runs == [1]


def test_threads_share_one_result():
    """Sync callers at the same time: one runs, all get its result."""
    runs, results = [], []

    @idempotent(store=MemoryStore(), on_duplicate="wait")
    def charge(user: int) -> int:
        runs.append(user)
        return len(runs)

    threads = [threading.Thread(target=lambda: results.append(charge(1))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (runs, results) == ([1], [1] * 8)
