"""Keys and lanes: which aggregate an event belongs to, and which lane that puts it in."""

from __future__ import annotations

import zlib
from enum import Enum
from typing import Any
from uuid import UUID

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState

from outbox import fields
from outbox.errors import InvalidField

MAX_INT = 10**100

Key = str | int | UUID | object
"""A str, an int, a UUID, or a mapped object whose primary key is the event's key."""


def lane_of(key: str, lanes: int) -> int:
    """The lane of a key. Every writer, in any language, must compute the same."""
    return zlib.crc32(key.encode()) % lanes


def is_settled(key: object) -> bool:
    """Whether the key can no longer change: a new object's primary key may, until it is flushed."""
    state = inspect(key, raiseerr=False)
    return not isinstance(state, InstanceState) or state.key is not None


def key_text(key: object) -> str | None:
    """The key as text, or None for a mapped object whose primary key is not known yet."""
    if isinstance(key, Enum):
        key = key.value
    if isinstance(key, str):
        return fields.text("key", key, fields.MAX_KEY)
    if isinstance(key, bool):
        raise InvalidField("key", "must not be a bool")
    if isinstance(key, int):
        if abs(key) >= MAX_INT:
            raise InvalidField("key", "is too large a number; pass it as text")
        return str(key)
    if isinstance(key, UUID):
        return str(key)
    state = inspect(key, raiseerr=False)
    if not isinstance(state, InstanceState):
        kind = type(key).__name__
        raise InvalidField("key", f"must be a str, int, UUID or mapped object, not {kind}")
    identity = _identity(state)
    return None if identity is None else fields.text("key", _joined(identity), fields.MAX_KEY)


def _identity(state: InstanceState[Any]) -> tuple[Any, ...] | None:
    """The primary key without touching the database: emit() must never load an attribute."""
    if state.key is not None:
        return tuple(state.key[1])
    mapper = state.mapper
    props = [mapper.get_property_by_column(column) for column in mapper.primary_key]
    values = tuple(state.dict.get(prop.key) for prop in props)
    return None if None in values else values


def _joined(identity: tuple[Any, ...]) -> str:
    """One column as it is; several joined by ':', escaped so that no two keys look alike."""
    parts = [str(part) for part in identity]
    if len(parts) == 1:
        return parts[0]
    return ":".join(part.replace("%", "%25").replace(":", "%3A") for part in parts)
