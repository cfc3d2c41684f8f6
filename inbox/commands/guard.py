"""A guard around command handlers: each command has one effect and one answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

from inbox.claims.key import Seconds, seconds
from inbox.commands.answer import Answer
from inbox.commands.call import Call, CallReader
from inbox.commands.execution import Execution, Policy, without_waiting
from inbox.commands.idempotency import TTL, WAIT_TIMEOUT
from inbox.commands.ledger import check_text, patience
from inbox.errors import InvalidSource
from inbox.metrics import METRICS, Metrics
from inbox.schema import DEFAULT_STATUS, OPERATION_LENGTH

METHODS = ("handle", "execute", "__call__")
"""Which method of a handler class is guarded: the first one that it has."""

H = TypeVar("H", bound=Callable[..., Any])


def command_guard(
    operation: str,
    *,
    key: Callable[[Any], str | None] | None = None,
    session: Callable[..., Any] | None = None,
    tenant: str | Callable[[Any], str] = "default",
    ttl: Seconds = TTL,
    wait_timeout: Seconds | None = WAIT_TIMEOUT,
    commit: bool = True,
    status_code: int = DEFAULT_STATUS,
    dump: Callable[[Any], Any] | None = None,
    load: Callable[[Any], Any] | None = None,
    schema: str | None = None,
    prefix: str = "",
    metrics: Metrics = METRICS,
) -> Callable[[H], H]:
    """Let each command have one effect and one answer, by its idempotency key.

    On a function, or on a class with a method `handle`, `execute` or `__call__` (the first of them,
    which is replaced in the class itself); sync with a Session, async with an AsyncSession.

    operation    what the command does; the same key for another operation is a conflict
    key          gives the key of a command; else its attribute or item `idempotency_key`, or the
                 argument of that name. None: the command is handled, and not remembered
    session      gives the session, from the arguments of the call; else the argument or the
                 handler's attribute `session`
    tenant       whose key it is, or how to tell from the command
    wait_timeout how long to wait for another one with the same key; 0: raise at once, None: as
                 long as it takes. Then InProgressError
    commit       True: **the guard commits** when the handler returns, and rolls back when it
                 raises, everything in the session; then it writes FAILED in a transaction of its
                 own, and the next one may try again. False: all happens in a savepoint of your
                 transaction, which you commit; a failure leaves nothing, not even FAILED
    status_code, dump, load   what is saved as the answer, and what a replay returns; see `Answer`
    schema, prefix            where the table is

    The handler must not commit: CommitRefused.
    """
    check_text("operation", operation, OPERATION_LENGTH)

    def guarded(function: Callable[..., Any], is_method: bool) -> Callable[..., Any]:
        policy = Policy(
            operation=operation,
            answer=Answer(function, dump, load),
            tenant=tenant,
            ttl=seconds("ttl", ttl),
            wait=patience(wait_timeout),
            commit=commit,
            status_code=status_code,
            schema=schema,
            prefix=prefix,
            metrics=metrics,
        )
        reader = CallReader(function, is_method=is_method, key=key, session=session)
        return _around(function, policy, reader)

    def decorate(handler: H) -> H:
        if not isinstance(handler, type):
            return guarded(handler, is_method=False)  # type: ignore[return-value]  # it is wrapped
        name = next((name for name in METHODS if name in dir(handler)), None)
        if name is None:
            raise TypeError(f"{handler.__name__} has none of the methods {', '.join(METHODS)}")
        # In place: whoever has registered the class already shall have it guarded too.
        setattr(handler, name, guarded(getattr(handler, name), is_method=True))
        return handler

    return decorate


def _around(function: Callable[..., Any], policy: Policy, reader: CallReader) -> Callable[..., Any]:
    def execution(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Execution:
        call = _checked(reader.read(args, kwargs), policy.operation, is_async)
        return Execution(policy, call, lambda: function(*args, **kwargs))

    @wraps(function)
    async def run_async(*args: Any, **kwargs: Any) -> Any:
        return await execution(args, kwargs).run()

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return without_waiting(execution(args, kwargs).run())

    is_async = inspect.iscoroutinefunction(function)
    return run_async if is_async else run


def _checked(call: Call, operation: str, is_async: bool) -> Call:
    if isinstance(call.session, AsyncSession) is not is_async:
        raise InvalidSource(
            "an async handler needs an AsyncSession, and any other a Session: "
            f"{operation} was given {type(call.session).__name__}"
        )
    return call
