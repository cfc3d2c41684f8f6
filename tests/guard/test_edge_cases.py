"""The cases in which a guard is put to the test, one by one, on every store and in both colours."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from inbox import (
    ArgumentNotEncodable,
    ClaimStore,
    DuplicateExecutionError,
    FileStore,
    InProgressError,
    MemoryStore,
    ReplayedFailure,
    ResultNotStored,
    ResultUnavailable,
    idempotent,
)
from support.calls import Gate, Guarder
from support.waiting import until


@pytest.fixture
def guarded(colour: str, store: ClaimStore) -> Guarder:
    return Guarder(colour, store)


async def test_the_same_call_runs_once(guarded: Guarder):
    """The card is charged once, and both callers get the invoice."""
    charged = []

    @guarded(ttl=300)
    async def create_invoice(user_id: int, amount: int) -> dict[str, int]:
        charged.append((user_id, amount))
        return {"invoice_id": 123}

    assert await create_invoice(1, 100) == {"invoice_id": 123}
    assert await create_invoice(1, amount=100) == {"invoice_id": 123}
    assert await create_invoice(2, 100) == {"invoice_id": 123}
    assert charged == [(1, 100), (2, 100)]


def _die(folder: Path) -> None:
    @idempotent(store=FileStore(folder), lease=0.3, name="charge")
    def charge(user: int) -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    charge(1)


async def test_crash_in_mid_execution(colour: str, tmp_path: Path):
    """A killed process holds the key until its lease is over; then the next call takes over."""
    process = multiprocessing.get_context("spawn").Process(target=_die, args=(tmp_path,))
    process.start()
    await asyncio.to_thread(process.join)
    assert process.exitcode == -signal.SIGKILL

    @Guarder(colour, FileStore(tmp_path))(name="charge", on_duplicate="wait", lease=0.3)
    async def charge(user: int) -> str:
        return "second"

    assert await charge(1) == "second"


async def test_concurrent_calls(guarded: Guarder):
    """Of many at the same time one runs; the others wait for it, and get its result."""
    runs = []

    @guarded(on_duplicate="wait")
    async def charge(user: int) -> int:
        runs.append(user)
        await asyncio.sleep(0)
        return len(runs)

    assert await asyncio.gather(*[charge(1) for _ in range(10)]) == [1] * 10
    assert runs == [1]


async def test_function_raises_and_may_be_called_again(guarded: Guarder):
    """By default a failure unlocks the call."""
    runs = []

    @guarded()
    async def charge(user: int) -> str:
        runs.append(user)
        if len(runs) == 1:
            raise ConnectionError("card service away")
        return "paid"

    with pytest.raises(ConnectionError, match="card service away"):
        await charge(1)
    assert await charge.inspect(1) is None
    assert await charge(1) == "paid"


async def test_function_raises_and_that_is_its_answer(guarded: Guarder):
    """With on_failure="lock" the first caller gets the exception, the others what it was."""
    runs = []

    @guarded(on_failure="lock")
    async def charge(user: int) -> str:
        runs.append(user)
        raise PermissionError(13, "card refused")

    with pytest.raises(PermissionError):
        await charge(1)
    with pytest.raises(ReplayedFailure, match=r"PermissionError: \[Errno 13\] card refused") as it:
        await charge(1)
    assert (it.value.type, it.value.message) == ("PermissionError", "[Errno 13] card refused")
    assert it.value.arguments == (13, "card refused")
    assert runs == [1]
    record = await charge.inspect(1)
    assert (record.status, record.error.type) == ("failed", "PermissionError")


async def test_unhashable_arguments(guarded: Guarder):
    """dicts and lists make keys, whatever order their keys were written in."""
    runs = []

    @guarded()
    async def place(order: dict[str, Any], tags: list[str]) -> int:
        runs.append(order)
        return len(runs)

    assert await place({"a": 1, "b": {"c": [1]}}, ["x"]) == 1
    assert await place({"b": {"c": [1]}, "a": 1}, ["x"]) == 1
    assert await place({"b": {"c": [2]}, "a": 1}, ["x"]) == 2


async def test_arguments_that_make_no_key(guarded: Guarder):
    """An object of no known identity is refused before anything runs, and `key=` is the way out."""

    class Basket:
        number = 7

    @guarded()
    async def guessing(basket: Basket) -> int:
        raise AssertionError("must not run")

    with pytest.raises(ArgumentNotEncodable, match=r"basket: .*Basket has no identity.*key=lambda"):
        await guessing(Basket())

    @guarded(key=lambda basket: f"basket:{basket.number}")
    async def told(basket: Basket) -> int:
        return basket.number

    assert await told(Basket()) == await told(basket=Basket()) == 7


async def test_result_that_cannot_be_stored(guarded: Guarder):
    """The first caller gets it and a warning; a repetition an error, never a silent None."""
    runs = []

    @guarded()
    async def connect(host: str) -> object:
        runs.append(host)
        return runs.append

    with pytest.warns(ResultNotStored, match="connect returned what cannot be stored"):
        assert callable(await connect("a"))
    with pytest.raises(ResultUnavailable, match="result could not be stored"):
        await connect("a")
    assert runs == ["a"]
    record = await connect.inspect("a")
    assert (record.status, record.result) == ("completed", None)


class Delayed:
    """A store whose second caller sees the first one running, and then looks away for a while."""

    def __init__(self, store: ClaimStore, look_away: Gate) -> None:
        self._store, self._gate = store, look_away
        self._asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(self, key: str, **request: Any) -> Any:
        self._asked += 1
        outcome = await self._store.claim(key, **request)
        if self._asked == 2:
            await self._gate.passed()
        return outcome


async def test_ttl_expires_while_waiting(store: ClaimStore):
    """A result that has come and gone while somebody waited is not given to him: he runs anew."""
    first, away = Gate(), Gate()
    runs = []

    @idempotent(store=Delayed(store, away), on_duplicate="wait", ttl=0.01)
    async def charge(user: int) -> int:
        runs.append(user)
        if len(runs) == 1:
            await first.passed()
        return len(runs)

    running = asyncio.create_task(charge(1))
    await first.is_reached()
    waiting = asyncio.create_task(charge(1))
    await away.is_reached()
    first.open()
    assert await running == 1

    async def is_gone() -> bool:
        return await charge.inspect(1) is None

    await until(is_gone)
    away.open()
    assert await waiting == 2


async def test_async_and_sync_mixed(store: ClaimStore):
    """A sync and an async function of one name, on one store, are one: also at the same time."""
    gate = Gate()

    @idempotent(store=store, name="charge", on_duplicate="wait")
    async def charge(user: int) -> str:
        await gate.passed()
        return "async"

    @idempotent(store=store, name="charge", on_duplicate="wait")
    def charge_sync(user: int) -> str:
        return "sync"

    running = asyncio.create_task(charge(1))
    await gate.is_reached()
    waiting = asyncio.create_task(asyncio.to_thread(charge_sync, 1))
    gate.open()
    assert (await running, await waiting) == ("async", "async")
    assert await asyncio.to_thread(charge_sync, 2) == await charge(2) == "sync"


def _call(folder: Path | None, barrier: Any, runs: Any) -> None:
    store = MemoryStore() if folder is None else FileStore(folder)

    @idempotent(store=store, name="charge", on_duplicate="wait")
    def charge(user: int) -> str:
        with runs:
            runs.value += 1
        return "paid"

    barrier.wait()
    assert charge(1) == "paid"


@pytest.mark.parametrize(("kind", "expected"), [("memory", 3), ("file", 1)])
async def test_process_isolation(kind: str, expected: int, tmp_path: Path):
    """Memory is not shared by processes, and each of them runs the call; files are."""
    spawn = multiprocessing.get_context("spawn")
    barrier, runs = spawn.Barrier(3), spawn.Value("i", 0)
    folder = tmp_path if kind == "file" else None
    processes = [spawn.Process(target=_call, args=(folder, barrier, runs)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        await asyncio.to_thread(process.join)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert runs.value == expected


@pytest.mark.parametrize("on_duplicate", ["return", "raise"])
async def test_a_duplicate_while_the_first_runs(guarded: Guarder, on_duplicate: str):
    """There is nothing to return yet: the caller is told when to ask again."""
    gate = Gate()

    @guarded(on_duplicate=on_duplicate, lease=60)
    async def charge(user: int) -> str:
        await gate.passed()
        return "paid"

    running = asyncio.create_task(charge(1))
    await gate.is_reached()
    with pytest.raises(InProgressError, match="still running") as refused:
        await charge(1)
    assert isinstance(refused.value, DuplicateExecutionError)
    assert 0 < refused.value.retry_after.total_seconds() <= 60
    record = await charge.inspect(1)
    assert (record.status, record.completed_at, record.result) == ("in_progress", None, None)
    assert record.started_at <= record.heartbeat < record.expires_at
    gate.open()
    assert await running == "paid"


async def test_raising_at_duplicates(guarded: Guarder):
    """With on_duplicate="raise" a call that has been made is an error, even with a result there."""

    @guarded(on_duplicate="raise")
    async def charge(user: int) -> str:
        return "paid"

    assert await charge(1) == "paid"
    with pytest.raises(DuplicateExecutionError, match="is completed") as duplicate:
        await charge(1)
    assert not isinstance(duplicate.value, InProgressError)
    assert duplicate.value.status == "completed"


async def test_waiting_ends(guarded: Guarder):
    """Whoever waits longer than wait_timeout is told that it still runs."""
    gate = Gate()

    @guarded(on_duplicate="wait", wait_timeout=0.05)
    async def charge(user: int) -> str:
        await gate.passed()
        return "paid"

    running = asyncio.create_task(charge(1))
    await gate.is_reached()
    with pytest.raises(InProgressError):
        await charge(1)
    gate.open()
    assert await running == "paid"


async def test_a_waiter_runs_when_the_first_fails(guarded: Guarder):
    """The first one's failure is his own; the one who waited has a try."""
    gate, runs = Gate(), []

    @guarded(on_duplicate="wait")
    async def charge(user: int) -> str:
        runs.append(user)
        if len(runs) == 1:
            await gate.passed()
            raise ConnectionError
        return "paid"

    running = asyncio.create_task(charge(1))
    await gate.is_reached()
    waiting = asyncio.create_task(charge(1))
    gate.open()
    with pytest.raises(ConnectionError):
        await running
    assert await waiting == "paid"


async def test_results_expire(guarded: Guarder):
    """After ttl the call runs again."""
    runs = []

    @guarded(ttl=0.02)
    async def charge(user: int) -> int:
        runs.append(user)
        return len(runs)

    assert await charge(1) == 1

    async def ran_again() -> bool:
        return await charge(1) > 1

    await until(ran_again)


async def test_inspecting_and_forgetting(guarded: Guarder):
    """By the arguments of the call: what is known of it, and a way to let it run again."""
    runs = []

    @guarded()
    async def charge(user: int, amount: int = 5) -> list[int]:
        runs.append(user)
        return [amount, len(runs)]

    assert await charge.inspect(1) is None
    assert await charge(1) == [5, 1]
    record = await charge.inspect(user=1, amount=5)
    assert record.key.endswith('charge0:{"amount":5,"user":1}')
    assert (record.status, record.result, record.error) == ("completed", [5, 1], None)
    assert record.started_at <= record.heartbeat <= record.completed_at < record.expires_at
    assert await charge.forget(1, 5)
    assert not await charge.forget(1, 5)
    assert await charge(1) == [5, 2]
