"""Guarded functions, sync and async, called the same way.

A body is async. In a sync function it runs in a loop of its own, and the function in a thread.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from threading import Event
from typing import Any, Literal

from inbox import ClaimStore, idempotent
from support.waiting import until

Colour = Literal["sync", "async"]
Body = Callable[..., Awaitable[Any]]


class Guarder:
    """`@guarder(ttl=…)` is `@idempotent(store=…, ttl=…)`, on a function of one colour."""

    def __init__(self, colour: Colour, store: ClaimStore) -> None:
        self.colour = colour
        self.store = store

    def __call__(self, **settings: Any) -> Callable[[Body], Any]:
        return lambda body: _Function(body, self.colour, {"store": self.store, **settings})


class _Function:
    def __init__(self, body: Body, colour: Colour, settings: dict[str, Any]) -> None:
        self.colour = colour
        made = body if colour == "async" else _sync(body)
        self.guarded: Any = idempotent(**settings)(made)

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return await self._ask(self.guarded, *args, **kwargs)

    async def inspect(self, *args: Any, **kwargs: Any) -> Any:
        return await self._ask(self.guarded.inspect, *args, **kwargs)

    async def forget(self, *args: Any, **kwargs: Any) -> Any:
        return await self._ask(self.guarded.forget, *args, **kwargs)

    async def _ask(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        if self.colour == "async":
            return await method(*args, **kwargs)
        return await asyncio.to_thread(method, *args, **kwargs)


def _sync(body: Body) -> Any:
    @functools.wraps(body)
    def function(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(_awaited(body(*args, **kwargs)))

    return function


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


class Gate:
    """Holds a body until it is opened, whatever loop or thread it runs in."""

    def __init__(self) -> None:
        self.reached, self.opened = Event(), Event()

    async def passed(self) -> None:
        self.reached.set()
        await _set(self.opened)

    async def is_reached(self) -> None:
        await _set(self.reached)

    def open(self) -> None:
        self.opened.set()

    async def is_open(self) -> None:
        await _set(self.opened)


async def _set(event: Event) -> None:
    async def is_set() -> bool:
        return event.is_set()

    await until(is_set)
