"""What can be given again, and as what."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest

from inbox import (
    MemoryStore,
    ReplayedFailure,
    ResultNotStored,
    ResultUnavailable,
    State,
    idempotent,
    new_token,
)


@dataclass
class Invoice:
    number: int
    at: datetime
    lines: list[Line]


class Line(msgspec.Struct):
    price: Decimal


class Receipt(pydantic.BaseModel):
    id: UUID
    at: datetime


class Colour(Enum):
    RED = "red"


@dataclass(eq=False)
class Handle:
    number: int


NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ID = UUID("0190a0b0-0000-7000-8000-000000000001")


def returning(value: Any, annotation: Any) -> Callable[[], Any]:
    def function() -> Any:
        return value

    if annotation is None:
        del function.__annotations__["return"]
    else:
        function.__annotations__["return"] = annotation
    return idempotent(store=MemoryStore())(function)


STORED = [
    *[(value, None) for value in (None, True, 0, 2**70, 1.5, "", "é\0", [], {"a": [None]})],
    (None, "None"), (1, int), (1.0, float), ((1, "a"), tuple[int, str]), ({1, 2}, set[int]),
    (b"", bytes), (b"\0\xff", "bytes | None"), (ID, UUID), (NOW, datetime), (Colour.RED, Colour),
    (date(2026, 1, 1), date), (timedelta(seconds=1.5), timedelta), (Decimal("1.50"), Decimal),
    ({1: "a"}, dict[int, str]), (Invoice(1, NOW, [Line(Decimal(2))]), "Invoice"),
    ([Line(Decimal(2))], list[Line]), (Receipt(id=ID, at=NOW), Receipt),
    ([Receipt(id=ID, at=NOW)], "list[Receipt] | None"), (frozenset({"a"}), frozenset[str]),
]  # fmt: skip


@pytest.mark.parametrize(("value", "annotation"), STORED)
def test_a_replay_is_what_was_returned(value: object, annotation: object):
    """Of the same type, by the return annotation; without one, what JSON knows by itself."""
    function = returning(value, annotation)
    assert function() is value
    replayed = function()
    assert replayed == value
    assert type(replayed) is type(value)
    assert replayed is not value or not isinstance(value, list | dict | set)


UNSTORED = [
    *[(value, None) for value in ((1, 2), {1}, b"x", ID, NOW, Decimal(1), {1: "a"}, Line(1))],
    (float("nan"), float), ([float("inf")], list[float]), (object(), object), (print, None),
    (True, int), ("1", int), (1, str), (Handle(1), Handle), (Counter("a"), dict[str, int]),
    (Colour.RED, str), ("\ud800", str), (Invoice(1, NOW, []), "Unknown"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "annotation"), UNSTORED)
def test_what_would_come_back_as_something_else_is_not_stored(value: object, annotation: object):
    """The first call returns it and warns; a replay raises rather than give another value."""
    function = returning(value, annotation)
    with pytest.warns(ResultNotStored):
        assert function() is value
    with pytest.raises(ResultUnavailable):
        function()


class Unequal(msgspec.Struct):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("neither yes nor no")


def test_a_comparison_that_fails_hides_no_result():
    """The call went well, whatever its result thinks of others."""
    function = returning(Unequal(), Unequal)
    with pytest.warns(ResultNotStored):
        assert type(function()) is Unequal


def test_the_warning_names_the_line_of_the_call():
    """Where else would one look."""
    function = returning(object(), None)
    with pytest.warns(ResultNotStored) as caught:
        function()
    assert caught[0].filename == __file__


async def test_the_warning_of_an_async_call_too():
    """The line that awaits."""

    @idempotent(store=MemoryStore())
    async def function() -> object:
        return object()

    with pytest.warns(ResultNotStored) as caught:
        await function()
    assert caught[0].filename == __file__


def test_a_warning_made_an_error_comes_after_the_call_was_settled():
    """Python's own filter raises it; the call is not made again all the same."""
    function = returning(object(), None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ResultNotStored):
            function()
    with pytest.raises(ResultUnavailable):
        function()


def test_a_replay_is_a_copy():
    """What one caller does with it does not change what the next one gets."""
    function = returning({"a": [1]}, None)
    function()["a"].append(2)
    function()["a"].append(3)
    assert function() == {"a": [1]}


def test_a_result_that_the_annotation_no_longer_reads():
    """After a deployment that changed the type: an error, with what is wrong."""
    store = MemoryStore()

    @idempotent(store=store, name="f")
    def old() -> dict[str, int]:
        return {"number": 1}

    @idempotent(store=store, name="f")
    def new() -> Invoice:
        raise AssertionError("must not run")

    old()
    with pytest.raises(ResultUnavailable, match="missing required field"):
        new()
    with pytest.raises(ResultUnavailable):
        new.inspect()


class Refused(Exception):
    def __init__(self, code: int, card: object) -> None:
        super().__init__(code, card)

    def __str__(self) -> str:
        return "refused \ud800"


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def failing(exc: BaseException) -> Any:
    @idempotent(store=MemoryStore(), on_failure="lock")
    def function() -> None:
        raise exc

    return function


def test_a_failure_is_kept_as_type_message_and_arguments():
    """What has no form in JSON, by its repr; nothing is pickled."""
    function = failing(Refused(7, print))
    with pytest.raises(Refused):
        function()
    with pytest.raises(ReplayedFailure) as replayed:
        function()
    assert replayed.value.type.endswith("test_results.Refused")
    assert replayed.value.message == "refused \\ud800"
    assert replayed.value.arguments == (7, repr(print))
    assert function.inspect().error.args == [7, repr(print)]


def test_a_failure_that_cannot_say_what_it_is():
    """Does not hide itself behind another one."""
    function = failing(Silent())
    with pytest.raises(Silent):
        function()
    with pytest.raises(ReplayedFailure, match="<Silent>"):
        function()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interruption_locks_too(interruption: type[BaseException]):
    """Whoever locks after failures does not want to repeat what may be half done."""
    function = failing(interruption())
    with pytest.raises(interruption):
        function()
    with pytest.raises(ReplayedFailure, match=interruption.__name__):
        function()


def test_a_failure_that_cannot_be_read():
    """Somebody else's bytes under our key: a clear error."""
    function = failing(LookupError())
    store = function._guard.store.sync
    with pytest.raises(LookupError):
        function()
    key = function.inspect().key
    assert function.forget()
    claim = store.claim(key, fingerprint="", token=new_token(), lease=60).claim
    store.settle(claim, State.FAILED, b"?", 60)
    with pytest.raises(ResultUnavailable, match="how it failed cannot be read"):
        function()
