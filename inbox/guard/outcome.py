"""What is saved of a call: its result, or how it failed. JSON, never pickle."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import msgspec

from inbox.claims.claim import Record, State
from inbox.errors import ReplayedFailure, ResultUnavailable
from outbox import codec
from outbox.errors import NotDecodable, NotEncodable

T = TypeVar("T")

UNSTORED = "its result could not be stored"


class Saved(msgspec.Struct, Generic[T]):
    result: T


class Failure(msgspec.Struct, frozen=True):
    """An exception as it is saved: `args` as JSON where they have a form in it, else as repr."""

    type: str
    message: str
    args: list[Any]


@dataclass(frozen=True, slots=True)
class CallRecord:
    """What a store remembers of a call. Times are seconds since 1970 by the store's clock.

    key           under which the store keeps it
    status        "in_progress", "completed" or "failed"
    result        what a replay returns; None too if the result could not be stored
    error         how it failed, if failures are kept (on_failure="lock")
    heartbeat     when the claim was last renewed, at first when it was taken
    expires_at    until when it counts: while in progress, the end of the lease
    fence         of the claim under which it runs or ran
    """

    key: str
    status: str
    result: Any
    error: Failure | None
    started_at: float
    completed_at: float | None
    heartbeat: float
    expires_at: float
    fence: int


class Results:
    """Of one function, by its return annotation.

    A result is stored if reading it back as what the function is annotated to return gives an equal
    value of the same type; without an annotation that is what JSON knows by itself.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._wanted: Any = None

    def encode(self, result: object) -> tuple[bytes | None, str | None]:
        """The payload; or None, and why the result cannot be stored."""
        try:
            payload, _ = codec.encode(Saved(result))
            if _same(self._decode(payload), result):
                return payload, None
        except (NotEncodable, NotDecodable) as exc:
            return None, str(exc)
        name = type(result).__name__
        return None, f"read back as {self._annotation()}, this {name} is not what it was"

    def replay(self, record: Record) -> Any:
        """Returns or raises what the saved call returned or raised."""
        if record.state is State.FAILED:
            failure = _failure(record)
            raise ReplayedFailure(record.key, failure.type, failure.message, tuple(failure.args))
        if record.payload is None:
            raise ResultUnavailable(record.key, UNSTORED)
        try:
            return self._decode(record.payload)
        except NotDecodable as exc:
            raise ResultUnavailable(record.key, str(exc)) from exc

    def show(self, record: Record) -> CallRecord:
        result = None
        if record.state is State.COMPLETED and record.payload is not None:
            result = self.replay(record)
        return CallRecord(
            key=record.key,
            status=record.status,
            result=result,
            error=_failure(record) if record.state is State.FAILED else None,
            started_at=record.started_at,
            completed_at=record.completed_at,
            heartbeat=record.heartbeat,
            expires_at=record.expires_at,
            fence=record.fence,
        )

    def _decode(self, payload: bytes) -> Any:
        if self._wanted is None:
            self._wanted = Saved[self._annotation()]  # type: ignore[misc]  # known at run time
        return codec.decode(payload, codec.JSON, self._wanted).result

    def _annotation(self) -> Any:
        # Late, since the names in it may be defined after the function; and alone, since those of
        # the parameters need not be known at run time.
        try:
            only = SimpleNamespace(
                __annotations__={"return": self._function.__annotations__["return"]}
            )
            scope = getattr(self._function, "__globals__", {})
            return typing.get_type_hints(only, globalns=scope)["return"]
        except (KeyError, NameError, AttributeError, TypeError):
            return Any


def encode_failure(exc: BaseException) -> bytes:
    kind = type(exc)
    failure = Failure(
        type=f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
        message=_text(exc),
        args=[_argument(it) for it in exc.args],
    )
    return msgspec.json.encode(failure)


def _failure(record: Record) -> Failure:
    try:
        return msgspec.json.decode(record.payload or b"", type=Failure)
    except msgspec.DecodeError as exc:
        raise ResultUnavailable(record.key, f"how it failed cannot be read: {exc}") from exc


def _argument(value: object) -> Any:
    try:
        return codec.decode(codec.encode(Saved(value))[0], codec.JSON, Saved[Any]).result
    except NotEncodable:
        return _text(value, repr)


def _text(value: object, form: Callable[[object], str] = str) -> str:
    """Also of an object that cannot say what it is: nothing may come before the original error."""
    try:
        return form(value).encode(errors="backslashreplace").decode()
    except Exception:
        return f"<{type(value).__name__}>"


def _same(copy: object, result: object) -> bool:
    try:
        return type(copy) is type(result) and bool(copy == result)
    except Exception:  # an `==` may do anything
        return False
