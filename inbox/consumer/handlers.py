"""Handlers: what they are for, what they are given, and how they are called."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from inbox.claims.held import Held
from inbox.consumer.message import Message
from inbox.consumer.retry import Retry
from inbox.errors import BadHandler
from outbox import Event

F = TypeVar("F", bound=Callable[..., Any])

Make = Callable[["Given"], Any]


@dataclass(frozen=True, slots=True)
class Given:
    """What there is to hand to a handler. One message, or several for a batch handler."""

    messages: Sequence[Message]
    session: Any = None
    claim: Held | None = None


@dataclass(frozen=True, slots=True)
class Handler(Generic[F]):
    """A function, and how to make its arguments from a message."""

    function: F
    arguments: Mapping[str, Make]
    retry: Retry | None
    timeout: float | None
    batch: int = 0
    """How many events at once at most; 0 for one by one."""
    wants_session: type | None = None
    asynchronous: bool = True

    @property
    def name(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))

    async def __call__(self, given: Given) -> Any:
        """Run it, in a thread if it is sync. Data is decoded here, so that what does not fit is the
        event's fault and not the lane's."""
        arguments = {name: make(given) for name, make in self.arguments.items()}
        if self.asynchronous:
            running = self.function(**arguments)
        else:
            running = asyncio.to_thread(self.function, **arguments)
        if self.timeout is None:
            return await running
        async with asyncio.timeout(self.timeout):
            return await running

    def call_sync(self, given: Given) -> Any:
        """In the caller's thread; for sync handlers only."""
        return self.function(**{name: make(given) for name, make in self.arguments.items()})


def handler_of(
    function: F,
    *,
    retry: Retry | None = None,
    timeout: float | timedelta | None = None,
    batch: int = 0,
) -> Handler[F]:
    """Reads the function's annotations. `Event` or `Event[T]` is the event, a session the SQL
    inbox's, `Held` the claim with its fence; any other annotation is the data, decoded to it. What
    is not annotated is the event. For a batch handler, lists of these."""
    hints = _hints(function)
    arguments: dict[str, Make] = {}
    session: type | None = None
    for parameter in inspect.signature(function).parameters.values():
        wanted = hints.get(parameter.name, Event)
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise BadHandler(function, f"*{parameter.name} cannot be filled")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise BadHandler(function, f"{parameter.name} must not be positional-only")
        if wanted in (AsyncSession, Session):
            session = wanted
            arguments[parameter.name] = lambda given: given.session
        elif wanted is Held:
            arguments[parameter.name] = lambda given: given.claim
        else:
            arguments[parameter.name] = _many(function, wanted) if batch else _one(wanted)
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    asynchronous = inspect.iscoroutinefunction(function)
    return Handler(function, arguments, retry, seconds, batch, session, asynchronous)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except NameError as exc:
        raise BadHandler(function, f"its annotations cannot be resolved: {exc}") from exc


def _one(wanted: Any) -> Make:
    maker = _maker(wanted)
    return lambda given: maker(given.messages[0])


def _many(function: Callable[..., Any], wanted: Any) -> Make:
    if wanted is Event:  # not annotated
        wanted = list[Event[Any]]
    if get_origin(wanted) not in (list, Sequence):
        raise BadHandler(function, f"a batch handler takes lists, not {wanted!r}")
    maker = _maker(get_args(wanted)[0])
    return lambda given: [maker(message) for message in given.messages]


def _maker(wanted: Any) -> Callable[[Message], Any]:
    if wanted is Event:
        return Message.event
    if get_origin(wanted) is Event:
        (data,) = get_args(wanted)

        def typed(message: Message) -> Event[Any]:
            event = message.event()
            event.decode(data)  # now, and not when the handler is halfway through
            event._set(_data_type=data)
            return event

        return typed
    return lambda message: message.event().decode(wanted)


@dataclass(slots=True)
class Handlers:
    """The handlers of one consumer, by topic and type."""

    exact: dict[tuple[str, str], Handler[Any]] = field(default_factory=dict)
    fallback: dict[str, Handler[Any]] = field(default_factory=dict)
    """By topic: for types that nobody has asked for."""

    def add(self, topic: str, kind: str | None, handler: Handler[Any]) -> None:
        known = self.fallback.get(topic) if kind is None else self.exact.get((topic, kind))
        if known is not None:
            raise BadHandler(
                handler.function, f"{known.name} handles {kind!r} of {topic!r} already"
            )
        if kind is None:
            self.fallback[topic] = handler
        else:
            self.exact[topic, kind] = handler

    def find(self, message: Message) -> Handler[Any] | None:
        return self.exact.get((message.topic, message.type)) or self.fallback.get(message.topic)

    @property
    def topics(self) -> list[str]:
        return sorted({*(topic for topic, _ in self.exact), *self.fallback})

    @property
    def all(self) -> list[Handler[Any]]:
        return [*self.exact.values(), *self.fallback.values()]
