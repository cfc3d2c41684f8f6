"""One action of a user at a time."""

from __future__ import annotations

import asyncio

import pytest

from inbox import ConcurrentActionError, InvalidDuration, InvalidKey, RequestDedup
from inbox.metrics import Metrics
from support.web import until


async def test_a_second_action_is_refused_while_the_first_is_under_way(store):
    """And allowed after it; other users and tables are free."""
    requests = RequestDedup(store)
    async with requests.exclusive("table-1", "user-7"):
        with pytest.raises(ConcurrentActionError) as caught:
            async with requests.exclusive("table-1", "user-7"):
                raise AssertionError
        async with requests.exclusive("table-1", "user-8"), requests.exclusive("t", "user-7"):
            pass
    async with requests.exclusive("table-1", "user-7"):
        pass
    assert (caught.value.entity, caught.value.user) == ("table-1", "user-7")
    assert 0 < caught.value.retry_after.total_seconds() <= 5


async def test_of_fifty_at_once_one_is_let_in(store):
    """The seed's double click."""
    requests, inside, go = RequestDedup(store), [], asyncio.Event()

    async def act() -> bool:
        try:
            async with requests.exclusive("t", "u"):
                inside.append(1)
                await go.wait()
                return True
        except ConcurrentActionError:
            return False

    tasks = [asyncio.create_task(act()) for _ in range(50)]
    await until(lambda: sum(task.done() for task in tasks) == 49)
    go.set()
    assert sum([await task for task in tasks]) == len(inside) == 1


async def test_an_error_inside_ends_it(store):
    """With the error."""
    requests = RequestDedup(store)
    with pytest.raises(RuntimeError, match="broken"):
        async with requests.exclusive("t", "u"):
            raise RuntimeError("broken")
    async with requests.exclusive("t", "u"):
        pass


async def test_it_ends_by_itself_and_its_end_does_not_touch_the_next(store, registry):
    """Released by token only: the seed's bare DELETE would let a third one in."""
    requests = RequestDedup(store, metrics=Metrics(registry))
    async with asyncio.timeout(15):
        async with requests.exclusive("t", "u", ttl=0.02) as first:
            while True:
                try:
                    second = requests.exclusive("t", "u")
                    held = await second.__aenter__()
                    break
                except ConcurrentActionError:
                    await asyncio.sleep(0.005)
            assert first.lost
            assert not held.lost
            assert held.fence > first.fence
        with pytest.raises(ConcurrentActionError):
            async with requests.exclusive("t", "u"):
                raise AssertionError
        await second.__aexit__(None, None, None)
    async with requests.exclusive("t", "u"):
        pass
    outcomes = registry.outcomes("requests.exclusive")
    assert (outcomes["lost"], outcomes["miss"]) == (1, 3)
    assert outcomes["busy"] >= 1


async def test_cancelled_inside_it_is_free_at_once(store):
    """As when the socket closes."""
    requests, inside = RequestDedup(store), asyncio.Event()

    async def act() -> None:
        async with requests.exclusive("t", "u"):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(act())
    await inside.wait()
    task.cancel()
    await asyncio.wait({task})
    async with requests.exclusive("t", "u"):
        pass


async def test_cancelled_while_it_is_asked_for_it_is_free_at_once(store):
    """However far the request had come."""
    requests = RequestDedup(store)

    async def act() -> None:
        async with requests.exclusive("t", "u"):
            await asyncio.Event().wait()

    for steps in range(30):
        task = asyncio.create_task(act())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        async with requests.exclusive("t", "u"):
            pass


async def test_a_refused_action_is_not_taken_for_a_reply(store):
    """Inside `process`, the refusal leaves the request to be sent again."""
    requests = RequestDedup(store)

    async def act() -> str:
        async with requests.exclusive("t", "u"):
            return "done"

    async with requests.exclusive("t", "u"):
        with pytest.raises(ConcurrentActionError):
            await requests.process("t", "u", "r", act)
    assert not (await requests.process("t", "u", "r", act)).cached


async def test_bad_input_is_refused(store):
    """Before anything is locked."""
    requests = RequestDedup(store)
    with pytest.raises(InvalidKey):
        async with requests.exclusive("", "u"):
            pass
    with pytest.raises(InvalidDuration):
        async with requests.exclusive("t", "u", ttl=0):
            pass
