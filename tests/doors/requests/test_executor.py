"""In order for each key, side by side for all."""

from __future__ import annotations

import asyncio
import gc
from contextvars import ContextVar
from typing import Any

import pytest

from inbox import ExecutorClosed, InvalidSetting, KeyedExecutor, QueueFull, WaitsForItself
from inbox.metrics import Metrics
from support.web import until


class Log:
    """Work that notes when it begins, and goes on when it is told to."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.go = asyncio.Event()

    def work(self, what: Any) -> Any:
        async def run() -> Any:
            self.begun.append(what)
            await self.go.wait()
            return what

        return run


@pytest.fixture
def log() -> Log:
    return Log()


async def test_work_of_a_key_runs_one_after_another_in_order(log):
    """The next begins when the last has ended."""
    async with KeyedExecutor[str]() as executor:
        futures = [await executor.submit("k", log.work(n)) for n in range(5)]
        await until(lambda: log.begun)
        for _ in range(20):
            await asyncio.sleep(0)
        assert log.begun == [0]
        log.go.set()
        assert await asyncio.gather(*futures) == [0, 1, 2, 3, 4]
    assert log.begun == [0, 1, 2, 3, 4]


async def test_keys_run_side_by_side(log):
    """A slow table does not hold up the others."""
    async with KeyedExecutor[int]() as executor:
        for n in range(10):
            await executor.submit(n, log.work(n))
        await until(lambda: len(log.begun) == 10)
        log.go.set()


async def test_an_error_is_its_submitters_and_the_queue_goes_on(log):
    """Whatever is raised, before or after the first await, or instead of a coroutine."""
    log.go.set()

    async def fail() -> None:
        raise RuntimeError("broken")

    async def give_up() -> None:
        raise asyncio.CancelledError

    def not_async() -> Any:
        raise ValueError("not even a coroutine")

    async with KeyedExecutor[str]() as executor:
        futures = [
            await executor.submit("k", work)
            for work in (fail, log.work(1), give_up, log.work(2), not_async, log.work(3))
        ]
        results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(it) for it in results[::2]] == [RuntimeError, asyncio.CancelledError, ValueError]
    assert results[1::2] == [1, 2, 3]


async def test_an_error_that_nobody_asks_for_is_logged(caplog):
    """As asyncio does for every future."""

    async def fail() -> None:
        raise RuntimeError("broken")

    executor = KeyedExecutor[str]()
    await executor.submit("k", fail)
    await until(lambda: not len(executor))
    gc.collect()
    assert "RuntimeError: broken" in caplog.text


async def test_idle_queues_go_away(log):
    """And come back when there is work."""
    executor = KeyedExecutor[int]()
    tasks = asyncio.all_tasks()
    log.go.set()
    for _ in range(2):
        await asyncio.gather(*[executor.run(n, log.work(n)) for n in range(100)])
        await until(lambda: not len(executor))
    await until(lambda: asyncio.all_tasks() == tasks)
    assert len(log.begun) == 200


async def test_who_finds_the_queue_full_waits_for_room(log):
    """In order of arrival; who gives up has submitted nothing."""
    executor = KeyedExecutor[str](limit=2)
    for n in range(2):
        await executor.submit("k", log.work(n))
    await until(lambda: log.begun)
    await executor.submit("k", log.work(2))  # 0 runs, 1 and 2 wait
    crowd = [asyncio.create_task(executor.submit("k", log.work(n))) for n in (3, 4, 5)]
    await executor.submit("other", log.work("x"))  # has a queue of its own
    await until(lambda: len(log.begun) == 2)
    assert not any(task.done() for task in crowd)
    crowd[1].cancel()
    log.go.set()
    assert await (await crowd[2]) == 5
    await executor.close()
    assert [n for n in log.begun if n != "x"] == [0, 1, 2, 3, 5]


async def test_who_gives_up_just_as_there_is_room_has_submitted_nothing():
    """Cancelled at any step of the event loop: either it was taken, or it never runs."""
    outcomes = set()
    for steps in range(15):
        log, executor = Log(), KeyedExecutor[str](limit=1)
        await executor.submit("k", log.work(0))
        await until(lambda log=log: log.begun)
        await executor.submit("k", log.work(1))
        late = asyncio.create_task(executor.submit("k", log.work("late")))
        await asyncio.sleep(0)
        log.go.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        late.cancel()
        await asyncio.wait({late})
        await executor.close()
        assert ("late" in log.begun) is not late.cancelled()
        outcomes.add(late.cancelled())
    assert outcomes == {True, False}


@pytest.mark.parametrize("limit", [1, 3])
async def test_order_holds_under_back_pressure(limit):
    """With far more submitters than room, and work that never waits."""
    executor, order = KeyedExecutor[str](limit=limit), []

    def note(n: int) -> Any:
        async def run() -> None:
            order.append(n)

        return run

    await asyncio.gather(*[executor.run("k", note(n)) for n in range(200)])
    assert order == list(range(200))
    await until(lambda: not len(executor))


async def test_a_full_queue_raises_if_asked(log, registry):
    """With the key and the limit; the queue is as it was."""
    executor = KeyedExecutor[str](limit=1, on_full="raise", metrics=Metrics(registry))
    first = await executor.submit("k", log.work(1))
    await until(lambda: log.begun)
    second = await executor.submit("k", log.work(2))
    with pytest.raises(QueueFull) as caught:
        await executor.submit("k", log.work(3))
    assert (caught.value.key, caught.value.limit) == ("k", 1)
    log.go.set()
    assert await asyncio.gather(first, second) == [1, 2]
    assert registry.outcomes("executor") == {"miss": 2, "busy": 1}


async def test_closing_finishes_what_was_taken_and_takes_no_more(log):
    """Whoever still waits for room is told."""
    executor = KeyedExecutor[str](limit=1)
    taken = [await executor.submit("k", log.work(1))]
    await until(lambda: log.begun)
    taken.append(await executor.submit("k", log.work(2)))
    outside = asyncio.create_task(executor.submit("k", log.work(3)))
    await asyncio.sleep(0)
    closing = asyncio.create_task(executor.close())
    with pytest.raises(ExecutorClosed) as caught:
        await outside
    assert not caught.value.begun
    with pytest.raises(ExecutorClosed):
        await executor.submit("new", log.work(4))
    log.go.set()
    assert await closing == 0
    assert [future.result() for future in taken] == [1, 2]
    assert await executor.close() == 0


async def test_what_is_not_done_by_the_deadline_is_cut_off(log):
    """Its submitters learn which was begun."""
    executor = KeyedExecutor[str]()
    ended = []

    async def clean_up() -> None:
        try:
            await log.work(1)()
        finally:
            ended.append(1)

    futures = [await executor.submit("k", clean_up), await executor.submit("k", log.work(2))]
    await until(lambda: log.begun)
    assert await executor.close(timeout=0.01) == 2
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [(type(it), it.begun) for it in results] == [
        (ExecutorClosed, True),
        (ExecutorClosed, False),
    ]
    assert (ended, log.begun, len(executor)) == ([1], [1], 0)


async def test_work_whose_submitter_gave_up_does_not_run(log):
    """Before its turn it is left out; later it is cancelled. The queue goes on."""
    async with KeyedExecutor[str]() as executor:
        running, waiting = [
            asyncio.create_task(executor.run("k", log.work(n))) for n in ("running", "waiting")
        ]
        last = asyncio.create_task(executor.run("k", log.work("last")))
        await until(lambda: log.begun)
        waiting.cancel()
        running.cancel()
        await asyncio.wait({running, waiting})
        log.go.set()
        assert await last == "last"
    assert log.begun == ["running", "last"]


async def test_work_runs_with_the_context_of_its_submitter(log):
    """Traces and tenants follow it."""
    tenant = ContextVar("tenant", default="none")

    async def who() -> str:
        return tenant.get()

    async with KeyedExecutor[str]() as executor:
        await executor.submit("k", log.work(1))
        tenant.set("a")
        mine = await executor.submit("k", who)
        tenant.set("b")
        log.go.set()
        assert await mine == "a"


async def test_work_that_would_wait_for_itself_is_told(log):
    """Directly, and by way of another key; without waiting it may submit."""
    log.go.set()
    async with KeyedExecutor[str]() as executor:

        async def directly() -> None:
            await executor.run("k", log.work(1))

        async def around() -> None:
            await executor.run("other", directly)

        async def later() -> asyncio.Future[int]:
            return await executor.submit("k", log.work(2))

        for work in (directly, around):
            with pytest.raises(WaitsForItself):
                async with asyncio.timeout(5):
                    await executor.run("k", work)
        assert await (await executor.run("k", later)) == 2
    assert log.begun == [2]


async def test_a_timer_that_work_has_started_may_use_its_queue(log):
    """It is no part of that work."""
    log.go.set()
    async with KeyedExecutor[str]() as executor:

        async def act() -> asyncio.Task[int]:
            return asyncio.create_task(executor.run("k", log.work("fold")))

        assert await (await executor.run("k", act)) == "fold"


async def test_a_time_out_that_comes_after_the_action_finds_it_done():
    """The seed's race: the action was first, so nobody is folded."""
    turn, folded = [3], []

    async def act() -> None:
        await asyncio.sleep(0)
        turn[0] = 4

    async def time_out(position: int) -> None:
        if turn[0] == position:
            folded.append(position)

    async with KeyedExecutor[str]() as tables:
        await tables.submit("table-1", act)
        await tables.run("table-1", lambda: time_out(3))
    assert folded == []


async def test_failures_and_times_are_counted(registry):
    """Under the executor's name, never the key's."""

    async def fail() -> None:
        raise RuntimeError

    async with KeyedExecutor[str](name="tables", metrics=Metrics(registry)) as executor:
        with pytest.raises(RuntimeError):
            await executor.run("k", fail)
    assert registry.outcomes("tables") == {"miss": 1, "failed": 1}
    labels = {"door": "request", "name": "tables"}
    assert registry.get_sample_value("inbox_processing_seconds_count", labels) == 1


def test_bad_settings_are_refused():
    """At once."""
    with pytest.raises(InvalidSetting, match="limit"):
        KeyedExecutor(limit=0)
    with pytest.raises(InvalidSetting, match="on_full"):
        KeyedExecutor(on_full="drop")
