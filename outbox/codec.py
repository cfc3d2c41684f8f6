"""Data to bytes and back. Data is encoded once, at the call; the stream carries the same bytes.

JSON as msgspec writes it: UUID, Decimal and datetime as strings, an Enum as its value. A naive
datetime stays naive. What JSON would lose is refused: NaN, infinities, and private fields.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from outbox.errors import InvalidField, NotDecodable, NotEncodable

JSON = "application/json"
OCTETS = "application/octet-stream"

T = TypeVar("T")


def is_json(content_type: str) -> bool:
    essence = content_type.partition(";")[0].strip().lower()
    return essence == JSON or essence.endswith("+json")


def encode(data: object, content_type: str | None = None) -> tuple[bytes, str]:
    """The bytes of `data` and their content type. Only bytes may have a type of their own."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data), content_type or OCTETS
    if content_type is not None and not is_json(content_type):
        raise InvalidField("content_type", f"{content_type!r} needs data given as bytes")
    try:
        raw = _encoder.encode(data)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as exc:
        path, problem = _culprit(data, "$") or ("$", str(exc))
        raise NotEncodable(path, problem) from exc
    _refuse_losses(data, raw)
    return raw, content_type or JSON


def decode(raw: bytes, content_type: str, wanted: Any = Any) -> Any:
    """`raw` as `wanted`: bytes as they are, JSON as builtins or as the type asked for."""
    if wanted is bytes or not is_json(content_type):
        if wanted is bytes or wanted is Any:
            return raw
        raise NotDecodable(_name(wanted), f"it is {content_type}, not JSON")
    try:
        if _is_pydantic(wanted):
            return wanted.model_validate_json(raw)
        return _decoder(wanted).decode(raw)
    except (TypeError, ValueError, RecursionError) as exc:
        raise NotDecodable(_name(wanted), str(exc)) from exc


def type_of(data: object) -> Any:
    """The type that decoding must ask for to get a value like `data` back."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes
    plain = type(data) in (dict, list, str, int, float, bool, type(None))
    return Any if plain else type(data)


def _is_pydantic(wanted: object) -> bool:
    # Asked of the class itself: pydantic is optional, and importing it takes a while.
    return (
        isinstance(wanted, type)
        and hasattr(wanted, "__pydantic_validator__")
        and hasattr(wanted, "model_validate_json")
    )


def _to_json(value: Any) -> Any:
    if _is_pydantic(type(value)):
        return msgspec.Raw(value.model_dump_json(by_alias=True, round_trip=True).encode())
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _from_json(wanted: type, value: Any) -> Any:
    if _is_pydantic(wanted):
        return wanted.model_validate(value)  # type: ignore[attr-defined]  # a pydantic model
    raise TypeError(f"{_name(wanted)} cannot be read from JSON")


_encoder = msgspec.json.Encoder(enc_hook=_to_json)


@lru_cache(maxsize=512)
def _decoder(wanted: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(wanted, dec_hook=_from_json)


def _refuse_losses(data: object, raw: bytes) -> None:
    """NaN and infinities would silently become null, and private fields be left out."""
    if b"null" in raw and (path := _lossy_float(data, "$")):
        raise NotEncodable(path, "JSON has neither NaN nor infinities")
    for name in _field_names(type(data)):
        if name.startswith("_"):
            raise NotEncodable(f"$.{name}", "private fields are not encoded")


def _lossy_float(value: object, path: str) -> str | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else path
    for step, child in _children(value):
        if found := _lossy_float(child, path + step):
            return found
    return None


def _culprit(value: object, path: str, depth: int = 0) -> tuple[str, str] | None:
    """The path to the innermost value that does not encode, and why. Only run after a failure."""
    if depth > 100:
        return path, "it contains itself, or is nested too deeply"
    try:
        _encoder.encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as exc:
        for step, child in _children(value):
            if found := _culprit(child, path + step, depth + 1):
                return found
        return path, str(exc)
    return None


def _children(value: object) -> Iterable[tuple[str, object]]:
    if isinstance(value, Mapping):
        return [(f".{key}", child) for key, child in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{index}]", child) for index, child in enumerate(value)]
    return [(f".{name}", getattr(value, name, None)) for name in _field_names(type(value))]


def _field_names(kind: type) -> Iterable[str]:
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return [field.name for field in getattr(kind, "__attrs_attrs__", ())]


def _name(wanted: Any) -> str:
    return getattr(wanted, "__name__", None) or str(wanted)
