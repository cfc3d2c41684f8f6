"""Which calls are the same."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from inbox import ArgumentNotEncodable, InvalidKey, MemoryStore, idempotent

ID = UUID("0190a0b0-0000-7000-8000-000000000001")


@dataclass
class Circle:
    r: Any
    seen: int = field(default=0, compare=False)


@dataclass
class Sphere:
    r: Any


class Cube(msgspec.Struct):
    a: Any


class Model(pydantic.BaseModel):
    a: int
    b: datetime | None = None


@attrs.define
class Ring:
    r: int
    seen: int = attrs.field(default=0, eq=False)


class Colour(Enum):
    RED = 1
    GREEN = 2


class Size(IntEnum):
    SMALL = 1


class Kind(StrEnum):
    NEW = "new"


class Right(Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: int


class Text(str):
    __slots__ = ()


def key_of(*args: Any, **kwargs: Any) -> str:
    return probe.inspect_key(*args, **kwargs)


class Probe:
    """The key of a call, seen from outside: what the store keeps it under."""

    def __init__(self, function: Callable[..., Any], **settings: Any) -> None:
        self.store = MemoryStore()
        self.guarded = idempotent(store=self.store, **settings)(function)

    def inspect_key(self, *args: Any, **kwargs: Any) -> str:
        self.guarded(*args, **kwargs)
        record = self.guarded.inspect(*args, **kwargs)
        assert record is not None
        return record.key


def anything(value: Any = None, *more: Any, y: int = 7, **rest: Any) -> None: ...


probe = Probe(anything)

SAME = [
    ([1, 2], (1, 2)),
    ([1, 2], Point(1, 2)),
    ({"a": 1, "b": 2}, OrderedDict(b=2, a=1)),
    ({"a": 1}, MappingProxyType({"a": 1})),
    ({3, 1, 2}, frozenset({2, 3, 1})),
    (datetime(2026, 1, 1, 12, tzinfo=UTC),
     datetime(2026, 1, 1, 13, tzinfo=timezone(timedelta(hours=1)))),
    (b"ab", bytearray(b"ab")),
    (b"ab", memoryview(b"ab")),
    (Kind.NEW, "new"),
    (Size.SMALL, 1),
    (Text("a"), "a"),
    (Circle(1, seen=1), Circle(1, seen=2)),
    (Ring(1, seen=1), Ring(1, seen=2)),
    (Model(a=1), Model(a=1)),
    (float("nan"), float("nan")),
    ({1: "a", "x": "b"}, {"x": "b", 1: "a"}),
]  # fmt: skip

DIFFERENT = [
    *[None, 0, 1, 1.0, -1, 2**80, "", "1", "null", "\0", True, False, [], {}, [1], [[1]], ["1"]],
    *[float("nan"), float("inf"), float("-inf"), Decimal(1), Decimal("1.5"), 1.5, "1.5"],
    *[ID, str(ID), ID.bytes, ID.hex, b"", b"1", "MQ==", {"a": 1}, {"a": "1"}, {"b": 1}],
    *[{1: "a"}, {"1": "a"}, {None: 1}, {"null": 1}, {(1, 2): 3}, set(), {1}, {"1"}],
    *[date(2026, 1, 1), datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01"],
    *[time(1), timedelta(1), timedelta(seconds=1), PurePosixPath("/a"), "/a", Colour.RED],
    *[Colour.GREEN, Right(0), Right.READ, Right.WRITE, Right.READ | Right.WRITE, Circle, Sphere],
    *[Circle(1), Circle("1"), Sphere(1), Sphere(Circle(1)), Cube(1), Ring(1), Model(a=1)],
    *[Model(a=1, b=datetime(2026, 1, 1)), {"$type": "uuid", "value": str(ID)}, {"r": 1}],
    *[["$type", "uuid"], {"$type": "dict", "value": [["a", 1]]}, "é", "e\u0301", "É"],
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equal_arguments_make_the_same_call(one: object, other: object):
    """However they are written, typed or ordered."""
    assert key_of(one) == key_of(other)
    assert key_of([{"in": one}]) == key_of([{"in": other}])


def test_arguments_that_differ_make_different_calls():
    """No two of these share a key, be it alone or inside a container."""
    for wrap in (lambda it: it, lambda it: [it], lambda it: {"x": it}, lambda it: Circle(it)):
        keys = [key_of(wrap(it)) for it in DIFFERENT]
        assert len(set(keys)) == len(DIFFERENT)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.uuids(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def tagged(value: Any) -> Any:
    """Equal only for what a key must not tell apart: Python takes True for 1."""
    if isinstance(value, list):
        return [tagged(it) for it in value]
    if isinstance(value, dict):
        return {key: tagged(it) for key, it in value.items()}
    return type(value), value


@given(values, values)
def test_keys_are_equal_as_their_arguments_are(one: Any, other: Any):
    """Whatever the arguments hold."""
    assert (key_of(one) == key_of(other)) == (tagged(one) == tagged(other))


def test_positions_names_and_defaults_do_not_matter():
    """f(5), f(x=5) and f(5, y=<default>) are the same call; f(5, y=8) is another."""

    def f(x: int, y: int = 7, *, z: int = 9) -> None: ...

    simple = Probe(f)
    assert len({simple.inspect_key(*a, **k) for a, k in [
        ((5,), {}), ((), {"x": 5}), ((5, 7), {}), ((5,), {"y": 7}), ((), {"z": 9, "y": 7, "x": 5}),
    ]}) == 1  # fmt: skip
    assert simple.inspect_key(5) != simple.inspect_key(5, 8) != simple.inspect_key(5, z=8)
    assert key_of(5) == key_of(value=5) == key_of(5, y=7) == key_of(y=7, value=5)
    assert len({key_of(5), key_of(5, 7), key_of(5, z=7), key_of(5, 6, y=7), key_of(5, args=1)}) == 5


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2), {}), ((1,), {"x": 1}), ((1,), {"z": 1})]
)
def test_wrong_arguments_are_a_type_error(args: tuple[Any, ...], kwargs: dict[str, Any]):
    """As without a guard, and nothing is claimed for them."""

    @idempotent(store=MemoryStore())
    def f(x: int) -> None: ...

    with pytest.raises(TypeError):
        f(*args, **kwargs)


def test_positional_only_parameters():
    """A name that is positional only may be a keyword's as well."""

    def f(x: int, /, **rest: int) -> None: ...

    odd = Probe(f)
    assert odd.inspect_key(1, x=2) != odd.inspect_key(1)
    assert odd.inspect_key(1, x=2) == odd.inspect_key(1, x=2)


def test_mutated_arguments_do_not_change_the_key():
    """The key is taken before the function runs."""
    runs = []

    @idempotent(store=MemoryStore())
    def drain(queue: list[int]) -> int:
        runs.append(list(queue))
        queue.clear()
        return len(runs)

    assert drain([1, 2]) == drain([1, 2]) == 1
    assert drain([]) == 2


@pytest.mark.parametrize("value", [
    object(), lambda: 1, iter([1]), range(3), 1j, {"a": [object()]}, "\ud800", {"\ud800": 1},
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
])  # fmt: skip
def test_what_has_no_canonical_form_is_refused(value: object):
    """With the way out in the message; the function does not run."""
    with pytest.raises(ArgumentNotEncodable, match="key=lambda"):
        key_of(value)


def test_the_message_says_where():
    """Down to the innermost value."""
    with pytest.raises(ArgumentNotEncodable) as refused:
        key_of([{"a": Circle(object())}])
    assert refused.value.path == "value[0].a.r"


def test_arguments_that_contain_themselves_are_refused():
    """Instead of running out of stack."""
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ArgumentNotEncodable, match="contains itself"):
        key_of(loop)


@pytest.mark.parametrize("returned", [None, 5, b"x", "", "\ud800"])
def test_a_key_function_returns_text(returned: Any):
    """Anything else could be anyone's key."""
    with pytest.raises(InvalidKey):
        Probe(anything, key=lambda *_, **__: returned).inspect_key(1)


def test_a_key_function_gets_the_arguments_as_bound():
    """By position as declared, whatever its own parameters are called; with defaults."""

    def f(x: int, y: int = 7, *rest: int, z: int = 9) -> None: ...

    chosen = Probe(f, key=lambda a, b, *c, z: f"{a}-{b}-{c}-{z}")
    assert chosen.inspect_key(y=2, x=1).endswith("1-2-()-9")
    assert chosen.inspect_key(1, 2, 3, z=4).endswith("1-2-(3,)-4")


def test_very_long_arguments_have_short_keys():
    """Their digest, in fact."""
    assert len(key_of("x" * 10_000)) < 100
    assert key_of("x" * 10_000) != key_of("x" * 10_001)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    line: Mapped[int] = mapped_column(primary_key=True)


def test_a_mapped_object_is_its_primary_key():
    """Its other columns do not matter; without a primary key it is nobody yet."""
    assert key_of(Order(id=1, line=2)) == key_of(Order(id=1, line=2))
    assert key_of(Order(id=1, line=2)) != key_of(Order(id=1, line=3))
    with pytest.raises(ArgumentNotEncodable, match="no primary key yet"):
        key_of(Order(id=1))


class Account:
    def __init__(self, id: int | None, runs: list[Any]) -> None:
        self.id = id
        self.runs = runs

    @idempotent(store=(shared := MemoryStore()))
    def close(self, reason: str = "") -> int:
        self.runs.append(self.id)
        return len(self.runs)


class Savings(Account):
    pass


def test_self_is_left_out_unless_it_has_an_identity():
    """Two services are one; two accounts are two; two classes are two."""
    runs: list[Any] = []
    assert Account(None, runs).close("a") == Account(None, runs).close("a") == 1
    assert Account(7, runs).close("a") == Account(7, runs).close("a") == 2
    assert Account(8, runs).close("a") == 3
    assert Savings(None, runs).close("a") == Savings(None, runs).close("a") == 4
    assert Savings(7, runs).close("a") == 5


class Told:
    def __init__(self, key: Any) -> None:
        self.idempotency_key = key
        self.id = object()

    @idempotent(store=MemoryStore())
    def run(self) -> list[Any]:
        return [str(id(self))]


class Computed(Told):
    def __init__(self, number: int) -> None:
        self.number = number

    def idempotency_key(self) -> int:
        return self.number


@dataclass
class Value:
    x: int

    @idempotent(store=MemoryStore())
    def run(self) -> list[Any]:
        return [str(id(self))]


class Odd:
    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    @idempotent(store=MemoryStore())
    def run(self) -> None: ...


def test_what_an_identity_is():
    """An idempotency_key, given or computed; the fields of a value; never a guess."""
    assert Told("a").run() == Told("a").run() != Told("b").run()
    assert Computed(1).run() == Computed(1).run() != Computed(2).run()
    assert Value(1).run() == Value(1).run() != Value(2).run()
    with pytest.raises(ArgumentNotEncodable, match=r"self: .*Odd compares its objects"):
        Odd().run()


def outermost(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Service:
    runs = 0

    @outermost
    @idempotent(store=MemoryStore())
    def under(self, x: int) -> int:
        Service.runs += 1
        return Service.runs

    @staticmethod
    @idempotent(store=MemoryStore())
    def merge(into: Service, other: int) -> None: ...


def test_self_is_known_under_another_decorator_and_by_the_class():
    """By where the function was defined; but the first argument of a static method is no self."""
    assert Service().under(1) == Service().under(1) == Service.under(Service(), 1) == 1
    with pytest.raises(ArgumentNotEncodable, match=r"into: .*Service has no identity"):
        Service.merge(Service(), 1)


PROGRAM = """
from dataclasses import dataclass
from inbox import MemoryStore, idempotent

@dataclass(frozen=True)
class Item:
    tags: frozenset[str]

@idempotent(store=MemoryStore(), name="f")
def f(items: object) -> None: ...

argument = {"b": Item(frozenset("abcdefgh")), "a": {1, "x", None}}
f(argument)
print(f.inspect(argument).key)
"""


def test_keys_are_the_same_in_every_process():
    """Whatever seed their hashes have."""
    keys = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(keys) == 1
