"""What may be decorated, how, and what it is afterwards."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from inbox import (
    InProgressError,
    InvalidDuration,
    InvalidGuard,
    MemoryStore,
    ReplayedFailure,
    idempotent,
)
from inbox.claims.memory import process_store
from inbox.guard.guard import Options
from inbox.metrics import METRICS, Metrics
from support.calls import Gate, Guarder

CALLS: list[str] = []


@idempotent
def bare(x: int, y: int = 2) -> int:
    """Adds."""
    CALLS.append("bare")
    return x + y


@idempotent
async def bare_async(x: int) -> int:
    return x


def test_defaults():
    """Those of the table: five minutes, the process's memory, return, unlock, half a minute."""
    options = Options()
    assert (options.ttl, options.lease, options.wait_timeout) == (300, 60, 30)
    assert (options.on_duplicate, options.on_failure) == ("return", "unlock")
    assert (options.key, options.metrics) == (None, METRICS)
    assert bare._guard.store is process_store()
    bare(5)
    record = bare.inspect(5)
    assert record is not None
    assert record.completed_at is not None
    assert record.expires_at - record.completed_at == pytest.approx(300)
    assert bare.forget(5)


def test_it_looks_like_the_function():
    """Its name, its words, its signature; and a repr of its own."""
    assert (bare.__name__, bare.__doc__, bare.__module__) == ("bare", "Adds.", __name__)
    assert str(inspect.signature(bare)) == "(x: 'int', y: 'int' = 2) -> 'int'"
    assert bare.__wrapped__(1) == 3
    assert repr(bare) == f"<idempotent {__name__}.bare>"
    assert [inspect.iscoroutinefunction(it) for it in (bare, bare_async)] == [False, True]
    assert [asyncio.iscoroutinefunction(it) for it in (bare, bare_async)] == [False, True]
    with pytest.raises(AttributeError):
        bare.nothing  # noqa: B018


def test_it_can_be_sent_to_another_process():
    """By its name, as functions are; a method with its object."""
    module = sys.modules.setdefault(__name__, ModuleType(__name__))
    module.__dict__.update(bare=bare, Shop=Shop)
    assert pickle.loads(pickle.dumps(bare)) is bare
    assert copy.copy(bare) is bare
    assert pickle.loads(pickle.dumps(Shop().sell))(3) == 3


def test_its_errors_can_be_sent_too():
    """Whole, with what they hold."""
    busy = pickle.loads(pickle.dumps(InProgressError("k", timedelta(seconds=3))))
    assert (busy.key, busy.retry_after, str(busy)) == (
        "k",
        timedelta(seconds=3),
        "the call 'k' is still running elsewhere: ask again within 3 s",
    )
    failure = pickle.loads(pickle.dumps(ReplayedFailure("k", "T", "m", (1,))))
    assert (failure.type, failure.arguments) == ("T", (1,))


class Shop:
    runs = 0

    def __new__(cls) -> Shop:
        Shop.runs = 0
        return super().__new__(cls)

    @idempotent(store=MemoryStore())
    def sell(self, x: int) -> int:
        Shop.runs += 1
        return x

    @idempotent(store=MemoryStore())
    async def sell_async(self, x: int) -> int:
        Shop.runs += 1
        return x

    @idempotent(store=MemoryStore())
    @classmethod
    def above_class(cls, x: int) -> str:
        Shop.runs += 1
        return f"{cls.__name__} {x}"

    @classmethod
    @idempotent(store=MemoryStore())
    def under_class(cls, x: int) -> str:
        Shop.runs += 1
        return f"{cls.__name__} {x}"

    @idempotent(store=MemoryStore())
    @staticmethod
    def above_static(x: int) -> int:
        Shop.runs += 1
        return x

    @staticmethod
    @idempotent(store=MemoryStore())
    def under_static(x: int) -> int:
        Shop.runs += 1
        return x

    @idempotent(store=MemoryStore())
    @staticmethod
    async def static_async(x: int) -> int:
        Shop.runs += 1
        return x


class Branch(Shop):
    @idempotent(store=Shop.sell._guard.store)
    def sell(self, x: int) -> int:
        return super().sell(x) * 10


def test_methods():
    """Bound to their object, also for inspect and forget."""
    shop = Shop()
    assert (shop.sell(1), Shop.sell(shop, 1), Shop.sell(self=shop, x=1), Shop.runs) == (1, 1, 1, 1)
    assert shop.sell.inspect(1) == Shop.sell.inspect(shop, 1)
    assert shop.sell.inspect(1).result == 1
    assert str(inspect.signature(shop.sell)) == "(x: 'int') -> 'int'"
    assert shop.sell.forget(1)
    assert shop.sell.inspect(1) is None


async def test_async_methods():
    """The same, awaited."""
    shop = Shop()
    assert (await shop.sell_async(1), await Shop.sell_async(shop, 1), Shop.runs) == (1, 1, 1)
    assert (await shop.sell_async.inspect(1)).result == 1
    assert inspect.iscoroutinefunction(shop.sell_async)
    assert await shop.sell_async.forget(1)


def test_an_overriding_method_and_the_one_it_overrides():
    """Both guarded, on one store, with the same arguments: nested, they do not mix."""
    assert Branch().sell(7) == Branch().sell(7) == 70


@pytest.mark.parametrize("name", ["above_class", "under_class"])
def test_class_methods(name: str):
    """Either order of the decorators; each class is itself."""
    Shop.runs = 0
    assert getattr(Shop, name)(1) == getattr(Shop(), name)(1) == "Shop 1"
    assert getattr(Branch, name)(1) == "Branch 1"
    assert getattr(Branch, name)(x=1) == "Branch 1"


def test_class_methods_can_be_asked():
    """With @idempotent on top."""
    Shop.above_class(2)
    assert Shop.above_class.inspect(2).result == "Shop 2"
    assert Shop.above_class.forget(2)


@pytest.mark.parametrize("name", ["above_static", "under_static"])
def test_static_methods(name: str):
    """Either order of the decorators."""
    shop, function = Shop(), getattr(Shop, name)
    function.forget(1)
    assert (function(1), getattr(shop, name)(1), Shop.runs) == (1, 1, 1)
    assert getattr(shop, name).inspect(1).result == 1


async def test_async_static_methods():
    """Of either colour."""
    assert await Shop.static_async(1) == await Shop().static_async(1) == 1


def numbers() -> Iterator[int]:
    yield 1


async def numbers_async() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("generator", [numbers, numbers_async])
def test_generators_are_refused(generator: Any):
    """When decorated, not when called."""
    with pytest.raises(InvalidGuard, match=r"is a generator.*return a list"):
        idempotent(generator)


@pytest.mark.parametrize("thing", [Shop, functools.partial(numbers), 5, "x", len, print, bare])
def test_only_functions_can_be_guarded(thing: Any):
    """Not what has no name, no code, or a guard already."""
    with pytest.raises(InvalidGuard, match="needs a function"):
        idempotent(thing)


def test_a_class_is_told_of_operations():
    """Command handlers are guarded as classes, by another door."""
    with pytest.raises(InvalidGuard, match="operation="):
        idempotent(Shop)


def test_lambdas_need_a_name():
    """All of a module's are called the same."""
    with pytest.raises(InvalidGuard, match="name="):
        idempotent(lambda x: x)
    assert idempotent(store=MemoryStore(), name="f")(lambda x: x)(1) == 1


@pytest.mark.parametrize(("settings", "error"), [
    ({"on_duplicate": "ignore"}, InvalidGuard),
    ({"on_failure": "ignore"}, InvalidGuard),
    ({"key": "user"}, InvalidGuard),
    ({"name": ""}, InvalidGuard),
    ({"name": 5}, InvalidGuard),
    ({"ttl": 0}, InvalidDuration),
    ({"ttl": True}, InvalidDuration),
    ({"lease": -1}, InvalidDuration),
    ({"lease": "60"}, InvalidDuration),
    ({"wait_timeout": float("nan")}, InvalidDuration),
    ({"tll": 300}, TypeError),
])  # fmt: skip
def test_wrong_settings_are_refused_at_once(settings: dict[str, Any], error: type[Exception]):
    """Not at the first call, which may be weeks away."""
    with pytest.raises(error):
        idempotent(**settings)(lambda_free)


def lambda_free() -> None: ...


def test_durations_may_be_timedeltas():
    """Seconds or a timedelta, everywhere."""
    hour = timedelta(hours=1)

    @idempotent(ttl=hour, lease=hour, wait_timeout=hour, store=MemoryStore())
    def f() -> None: ...

    f()
    record = f.inspect()
    assert record is not None
    assert record.expires_at - record.heartbeat == pytest.approx(3600, abs=5)


def test_not_waiting_at_all():
    """A wait_timeout of 0 looks once more, and gives up."""
    Options(wait_timeout=0)
    Options(wait_timeout=None)


def returns_awaitable() -> Any:
    @functools.wraps(bare_async.__wrapped__)
    def wrapper(*args: Any) -> Any:
        return bare_async.__wrapped__(*args)

    return wrapper


def test_an_async_function_in_disguise_is_refused():
    """A sync wrapper around it: its coroutine has not run, and must not count as a result."""
    f = idempotent(store=MemoryStore())(returns_awaitable())
    with pytest.raises(InvalidGuard, match="not declared async"):
        f(1)
    assert f.inspect(1) is None


def test_operations_go_to_the_commands(monkeypatch: pytest.MonkeyPatch):
    """With the settings that were given, and no others."""
    commands = ModuleType("inbox.commands")
    seen: list[Any] = []

    def command_guard(operation: str, **settings: Any) -> Any:
        seen.append((operation, settings))
        return lambda handler: handler

    commands.command_guard = command_guard  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "inbox.commands", commands)
    assert idempotent(operation="CreateOrder", ttl=5)(Shop) is Shop
    assert seen == [("CreateOrder", {"ttl": 5})]


def outcomes(registry: CollectorRegistry) -> dict[str, float]:
    return {
        sample.labels["outcome"]: sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "inbox_outcomes_total"
    }


async def test_metrics(colour: Any, metrics: Metrics, registry: CollectorRegistry):
    """What came of each call, by the function's name."""
    gate = Gate()

    @Guarder(colour, MemoryStore())(name="charge", metrics=metrics)
    async def charge(user: int) -> str:
        if user == 3:
            await gate.passed()
        if user == 2:
            raise LookupError
        return "paid"

    await charge(1)
    await charge(1)
    with pytest.raises(LookupError):
        await charge(2)
    running = asyncio.create_task(charge(3))
    await gate.is_reached()
    with pytest.raises(InProgressError):
        await charge(3)
    gate.open()
    await running
    assert outcomes(registry) == {"miss": 3, "hit": 1, "failed": 1, "busy": 1}
    labels = {"door": "function", "name": "charge"}
    assert registry.get_sample_value("inbox_processing_seconds_count", labels) == 3


async def endpoint(request: Request) -> JSONResponse:
    return JSONResponse({})


def test_frameworks_take_it_for_an_async_function():
    """Starlette asks `inspect` whether to await it."""
    guarded = idempotent(key=lambda request: "k", store=MemoryStore())(endpoint)
    app = Starlette(routes=[Route("/", guarded)])
    assert app.routes
    assert inspect.iscoroutinefunction(guarded)
