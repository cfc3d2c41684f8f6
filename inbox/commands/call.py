"""What a call of a handler says: which command, under which key, in which session."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from inbox.errors import InvalidKey, InvalidSource

SESSIONS = (Session, AsyncSession, scoped_session, async_scoped_session)
_NOTHING: Any = object()


@dataclass(frozen=True, slots=True)
class Call:
    command: Any
    key: str | None
    """None: this one shall not be remembered."""
    session: Session | AsyncSession


class CallReader:
    """Reads the arguments of one function; `is_method` says that its first one is the handler."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        is_method: bool,
        key: Callable[[Any], str | None] | None,
        session: Callable[..., Any] | None,
    ) -> None:
        self._signature = inspect.signature(function)
        self._name = function.__qualname__
        self._is_method = is_method
        self._key = key
        self._session = session

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        arguments = self._signature.bind(*args, **kwargs).arguments
        handler = arguments.pop(next(iter(arguments))) if self._is_method else None
        if self._session is not None:
            session = self._session(*args, **kwargs)
        else:
            session = _session_among(arguments) or getattr(handler, "session", None)
        command = self._command(arguments)
        return Call(command, self._key_of(command, arguments), self._checked(session))

    def _command(self, arguments: Mapping[str, Any]) -> Any:
        for name, value in arguments.items():
            if name not in ("session", "idempotency_key") and not isinstance(value, SESSIONS):
                return value
        raise InvalidKey("command", f"{self._name} was called without one")

    def _key_of(self, command: Any, arguments: Mapping[str, Any]) -> str | None:
        if self._key is not None:
            return self._key(command)
        if "idempotency_key" in arguments:
            key = arguments["idempotency_key"]
        elif isinstance(command, Mapping):
            key = command.get("idempotency_key", _NOTHING)
        else:
            key = getattr(command, "idempotency_key", _NOTHING)
        if key is _NOTHING:
            raise InvalidKey(
                "idempotency_key",
                f"{type(command).__name__} has none: add the field (None for commands that need "
                "not be remembered), or say where it is with key=",
            )
        return None if key is None else str(key)

    def _checked(self, session: object) -> Session | AsyncSession:
        if isinstance(session, scoped_session | async_scoped_session):
            session = session()
        if not isinstance(session, Session | AsyncSession):
            raise InvalidSource(
                f"{self._name} has no session: give the handler an attribute `session`, the call "
                "an argument of that name, or say where it is with session="
            )
        return session


def _session_among(arguments: Mapping[str, Any]) -> Any:
    named = arguments.get("session")
    return named or next((it for it in arguments.values() if isinstance(it, SESSIONS)), None)
