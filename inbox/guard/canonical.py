"""Arguments as text: the same for equal ones, another one for others, in every process.

JSON with sorted keys. What JSON knows stands for itself; everything else carries its type, so that
a UUID is not its text, and a Circle of 1 is not a Sphere of 1. Values that can be told apart have
different texts; a few that are equal do too (1 and 1.0, Decimal("1.0") and Decimal("1.00")).
"""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

import msgspec

from inbox.errors import ArgumentNotEncodable
from outbox.keys import key_text

PLAIN = frozenset({str, int, bool, type(None)})
TYPE = "$type"
"""Marks what is not plain. A dict that has this key itself is written as a list of its items."""

_NO_IDENTITY = object()
_encode = msgspec.json.Encoder(order="sorted").encode


def canonical(arguments: Mapping[str, object]) -> str:
    try:
        return _encode(
            {
                name: value if type(value) in PLAIN else _plain(value, name)
                for name, value in arguments.items()
            }
        ).decode()
    except UnicodeEncodeError as exc:
        raise ArgumentNotEncodable("an argument", f"{exc.object!r} is not valid Unicode") from exc
    except RecursionError as exc:
        raise ArgumentNotEncodable("an argument", "it contains itself") from exc


class Receiver:
    """The object or class that a method was called on: its identity, or else its class alone."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


def _plain(value: object, path: str) -> Any:
    if isinstance(value, Receiver):
        found = _encodable(value.value, path)
        return _name(type(value.value)) if found is _NO_IDENTITY else found
    found = _encodable(value, path)
    if found is _NO_IDENTITY:
        raise ArgumentNotEncodable(path, f"{_name(type(value))} has no identity")
    return found


def _encodable(value: Any, path: str) -> Any:
    if type(value) in PLAIN:
        return value
    if isinstance(value, type):
        return _tagged("type", _name(value))
    if isinstance(value, Enum) and not isinstance(value, str | int):
        return _tagged(_name(type(value)), value.name)
    for kinds, encode in FORMS:
        if isinstance(value, kinds):
            return encode(value, path)
    return _identity(value, path)


def _mapping(value: Mapping[Any, Any], path: str) -> Any:
    if TYPE not in value and all(type(key) is str for key in value):
        return {key: _plain(it, f"{path}.{key}") for key, it in value.items()}
    items = [[_plain(key, path), _plain(it, f"{path}[{key!r}]")] for key, it in value.items()]
    return _tagged("dict", sorted(items, key=_encode))


def _sequence(value: Iterable[Any], path: str) -> Any:
    return [_plain(it, f"{path}[{index}]") for index, it in enumerate(value)]


def _set(value: Iterable[Any], path: str) -> Any:
    return _tagged("set", sorted((_plain(it, path) for it in value), key=_encode))


def _float(value: float, _: str) -> Any:
    return float(value) if math.isfinite(value) else _tagged("float", repr(float(value)))


def _datetime(value: datetime, path: str) -> Any:
    if value.tzinfo is None:
        return _tagged("datetime", value.isoformat())
    try:
        return _tagged("datetime", value.astimezone(UTC).isoformat())  # one moment, one text
    except OverflowError as exc:
        raise ArgumentNotEncodable(path, f"{value!r} is not within the years of UTC") from exc


def _as(tag: str, text: Callable[[Any], Any]) -> Callable[[Any, str], Any]:
    return lambda value, _: _tagged(tag, text(value))


FORMS: tuple[tuple[Any, Callable[[Any, str], Any]], ...] = (
    (str, lambda value, _: str.__str__(value)),
    (int, lambda value, _: int(value)),
    (float, _float),
    (list | tuple, _sequence),
    (Mapping, _mapping),
    (set | frozenset, _set),
    (UUID, _as("uuid", str)),
    (Decimal, _as("decimal", str)),
    (datetime, _datetime),
    (date, _as("date", date.isoformat)),
    (time, _as("time", time.isoformat)),
    (timedelta, _as("timedelta", lambda it: [it.days, it.seconds, it.microseconds])),
    (bytes | bytearray | memoryview, _as("bytes", lambda it: base64.b64encode(it).decode())),
    (PurePath, _as("path", str)),
)


def _identity(value: Any, path: str) -> Any:
    """What tells an object from others of its class, in this order:

    - its `idempotency_key`, an attribute or a method, if it is not None;
    - the primary key of an object that SQLAlchemy has mapped;
    - the fields that make dataclasses, Structs, pydantic models and attrs classes equal;
    - its attribute `id`, if it is not None.

    An object that has none of these, yet is compared in a way of its own, is an error; leaving it
    out would mix what its class tells apart. All others have no identity: services, clients.
    """
    name = _name(type(value))
    key = getattr(value, "idempotency_key", None)
    if key is not None:
        return _tagged(name, _plain(key() if callable(key) else key, f"{path}.idempotency_key"))
    if hasattr(type(value), "__mapper__"):
        if (text := key_text(value)) is None:
            raise ArgumentNotEncodable(path, f"this {name} has no primary key yet: flush it first")
        return _tagged(name, text)
    if (fields := _fields(value)) is not None:
        return _tagged(name, {field: _plain(it, f"{path}.{field}") for field, it in fields})
    if (number := getattr(value, "id", None)) is not None:
        return _tagged(name, _plain(number, f"{path}.id"))
    if _compares(type(value)):
        raise ArgumentNotEncodable(path, f"{name} compares its objects, but has no known identity")
    return _NO_IDENTITY


def _fields(value: Any) -> list[tuple[str, Any]] | None:
    kind: Any = type(value)
    if isinstance(value, msgspec.Struct):
        names = kind.__struct_fields__ if kind.__struct_config__.eq else None
    elif not _compares(kind):
        return None
    elif dataclasses.is_dataclass(kind):
        names = [it.name for it in dataclasses.fields(kind) if it.compare]
    elif hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_fields"):
        return list(value)  # fields and extras
    else:
        attributes = getattr(kind, "__attrs_attrs__", None)
        names = None if attributes is None else [it.name for it in attributes if it.eq]
    return None if names is None else [(name, getattr(value, name)) for name in names]


def _compares(kind: Any) -> bool:
    """Its objects are equal by what they hold, not only to themselves."""
    return kind.__eq__ is not object.__eq__


def _tagged(tag: str, value: Any) -> dict[str, Any]:
    return {TYPE: tag, "value": value}


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
