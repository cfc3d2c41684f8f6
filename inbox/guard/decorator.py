"""`@idempotent`, bare or with arguments."""

# The first overload that fits is meant: an async function is also one that returns a coroutine.
# mypy: disable-error-code="overload-overlap"

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from inbox.claims.key import Seconds
from inbox.claims.store import ClaimStore
from inbox.errors import InvalidGuard
from inbox.guard.arguments import KeyFunction
from inbox.guard.guard import Guard, OnDuplicate, OnFailure, Options
from inbox.guard.guarded import (
    AsyncGuarded,
    AsyncGuardedFunction,
    Guarded,
    GuardedFunction,
    PerClass,
)
from inbox.metrics import Metrics

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F")


class Guarding(Protocol):
    """`@idempotent(…)`, which waits for its function."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncGuardedFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> GuardedFunction[P, R]: ...


@overload
def idempotent(function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncGuardedFunction[P, R]: ...
@overload
def idempotent(function: Callable[P, R], /) -> GuardedFunction[P, R]: ...
@overload
def idempotent(
    *,
    ttl: Seconds = ...,
    key: KeyFunction | None = ...,
    on_duplicate: OnDuplicate = ...,
    on_failure: OnFailure = ...,
    store: ClaimStore | None = ...,
    lease: Seconds = ...,
    wait_timeout: Seconds | None = ...,
    name: str | None = ...,
    metrics: Metrics = ...,
) -> Guarding: ...
@overload
def idempotent(*, operation: str, **settings: Any) -> Callable[[F], F]: ...
def idempotent(function: Any = None, /, **settings: Any) -> Any:
    """Let a function run once for the same arguments, and give its answer to every repetition.

    ttl           for how long an answer is kept: seconds or a timedelta; 300 s
    key           a function of the call's arguments that says, as text, what makes two calls the
                  same; otherwise all of the arguments do
    on_duplicate  what a repetition gets. "return": the answer of the first call; while that runs
                  there is none, and InProgressError is raised. "wait": the same, but it waits up to
                  `wait_timeout` for the first call, and runs itself if that fails. "raise":
                  DuplicateExecutionError in any case
    on_failure    "unlock": a call that raised may be made again. "lock": its failure is the answer,
                  as ReplayedFailure
    store         where claims and answers are kept: the process's own MemoryStore
    lease         how soon others may take over from a process that died; 60 s. While the function
                  runs it is renewed at every third of it
    wait_timeout  30 s; None waits for as long as it takes
    name          what the function is called in keys and metrics; its module and qualified name.
                  Give one, and it may be renamed or moved without forgetting its calls
    metrics       where outcomes are counted; Prometheus' default registry

    With `operation`, for command handlers: see `inbox.commands.command_guard`.
    """
    if "operation" in settings:
        guard: Any = import_module("inbox.commands").command_guard
        return guard(settings.pop("operation"), **settings)
    options = Options(**settings)
    if function is None:
        return lambda function: _guarded(function, options)
    return _guarded(function, options)


def _guarded(given: Any, options: Options) -> Any:
    function = given.__func__ if isinstance(given, classmethod | staticmethod) else given
    guard = Guard(function, _name(function, options.name), options)
    asynchronous = inspect.iscoroutinefunction(function)
    if isinstance(given, staticmethod):
        return AsyncGuarded(guard) if asynchronous else Guarded(guard)
    made = AsyncGuardedFunction(guard) if asynchronous else GuardedFunction(guard)
    return PerClass(made) if isinstance(given, classmethod) else made


def _name(function: Any, given: str | None) -> str:
    if not inspect.isfunction(function):
        raise InvalidGuard(
            f"@idempotent needs a function or a method, not {function!r}"
            + (": a class of command handlers needs operation=" * inspect.isclass(function))
        )
    name = f"{function.__module__}.{function.__qualname__}"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidGuard(
            f"{name} is a generator: it has run only when its caller has asked for the last value. "
            "Guard the function that does this, or return a list"
        )
    if given is None and function.__name__ == "<lambda>":
        raise InvalidGuard(f"{name} has no name to tell it from others: use a def, or give name=")
    return name if given is None else given
