"""Data to bytes and back, for every kind of data that services use."""

from __future__ import annotations

import dataclasses
import enum
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest

from outbox import Event, InvalidField, NotDecodable, NotEncodable
from outbox.codec import decode, encode


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Money:
    amount: Decimal
    currency: str = "EUR"


@dataclasses.dataclass
class Placed:
    id: UUID
    at: datetime
    day: date
    color: Color
    total: Money
    tags: list[str]


@attrs.define
class AttrsPlaced:
    id: UUID
    total: Decimal


class StructPlaced(msgspec.Struct):
    id: UUID
    total: Decimal


class ModelPlaced(pydantic.BaseModel):
    id: UUID
    total: Decimal
    at: datetime


class AliasedPlaced(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    order_id: int = pydantic.Field(alias="orderId")

    @pydantic.computed_field
    def double(self) -> int:
        return 2 * self.order_id


class Point(NamedTuple):
    x: int
    y: int


@attrs.define
class Private:
    _secret: int
    open: int = 1


ID = UUID("01890000-0000-7000-8000-000000000001")
AT = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


@pytest.mark.parametrize(
    "data",
    [
        Placed(ID, AT, date(2026, 1, 2), Color.RED, Money(Decimal("1.10")), ["a", "b"]),
        AttrsPlaced(ID, Decimal("2.50")),
        StructPlaced(ID, Decimal("2.50")),
        ModelPlaced(id=ID, total=Decimal("2.50"), at=AT),
        {"a": [1, 2.5, None, True, "ü"]},
        AliasedPlaced(orderId=7),
        Point(1, 2),
        Color.RED,
        ID,
        date(2026, 1, 2),
        {1, 2},
        [1, 2],
        b"\x00\xff",
    ],
    ids=lambda data: type(data).__name__,
)
def test_data_comes_back_as_it_was_given(data: Any):
    """A dataclass stays a dataclass, a model a model, bytes bytes."""
    made = Event("t", topic="t", key="k", data=data)
    assert made.data == data
    assert type(made.data) is type(data)


@pytest.mark.parametrize("wanted", [StructPlaced, AttrsPlaced, dict[str, Any]])
def test_data_decodes_to_the_type_asked_for(wanted: Any):
    """A consumer need not share the producer's classes."""
    made = Event("t", topic="t", key="k", data={"id": str(ID), "total": "2.50"})
    assert made.decode(wanted) == (
        {"id": str(ID), "total": "2.50"}
        if wanted == dict[str, Any]
        else wanted(ID, Decimal("2.50"))
    )


def test_models_inside_other_data_are_encoded_too():
    """A pydantic model in a dict, and a dataclass that holds one."""

    @dataclasses.dataclass
    class Holder:
        model: ModelPlaced

    model = ModelPlaced(id=ID, total=Decimal("2.50"), at=AT)
    raw, _ = encode({"items": [model]})
    assert decode(raw, "application/json")["items"][0]["total"] == "2.50"
    raw, _ = encode(Holder(model))
    holder = decode(raw, "application/json", Holder)
    assert holder.model == model


class Secret:
    pass


@dataclasses.dataclass
class Deep:
    inner: dict[str, Any]


def loop() -> dict[str, Any]:
    data: dict[str, Any] = {}
    data["self"] = data
    return data


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (Secret(), "$"),
        ({"a": [1, {"b": Secret()}]}, "$.a[1].b"),
        (Deep({"x": (1, Secret())}), "$.inner.x[1]"),
        ({"a": "\ud800"}, "$.a"),
        (object, "$"),
        ({"a": [1.0, float("nan")]}, "$.a[1]"),
        (Deep({"x": float("inf")}), "$.inner.x"),
        (Private(1), "$._secret"),
    ],
)
def test_data_that_cannot_be_encoded_names_the_place(data: Any, path: str):
    """The error leads to the value, not just to the event."""
    with pytest.raises(NotEncodable) as caught:
        Event("t", topic="t", key="k", data=data)
    assert caught.value.path == path


def test_data_that_contains_itself_is_refused():
    """A cycle is an error, not a crash."""
    with pytest.raises(NotEncodable, match="contains itself"):
        encode(loop())


def test_bytes_need_no_json():
    """Bytes go as they are, under the content type the caller gives."""
    assert encode(b"\x00") == (b"\x00", "application/octet-stream")
    assert encode(bytearray(b"a"), "text/plain") == (b"a", "text/plain")
    assert encode(b"{}", "application/json; charset=utf-8")[1] == "application/json; charset=utf-8"
    with pytest.raises(InvalidField):
        encode({"a": 1}, "application/xml")


def test_json_bytes_decode_as_json():
    """JSON that was encoded elsewhere reads like any other, under every JSON content type."""
    for content_type in ("application/json", "application/vnd.api+json; v=1"):
        assert decode(b'{"a": 1}', content_type) == {"a": 1}
        assert decode(b'{"a": 1}', content_type, bytes) == b'{"a": 1}'


@pytest.mark.parametrize(
    ("raw", "content_type", "wanted"),
    [
        (b'{"id": 1}', "application/json", StructPlaced),
        (b'{"id": 1}', "application/json", ModelPlaced),
        (b"{", "application/json", Any),
        (b"\x00", "application/octet-stream", StructPlaced),
        (b"[" * 100_000, "application/json", Any),
    ],
)
def test_data_that_does_not_fit_is_a_clear_error(raw: bytes, content_type: str, wanted: Any):
    """The error names the type that was asked for."""
    with pytest.raises(NotDecodable) as caught:
        decode(raw, content_type, wanted)
    assert caught.value.wanted == getattr(wanted, "__name__", str(wanted))
