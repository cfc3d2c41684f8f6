"""What an event's fields may hold. Each check raises `InvalidField` and names the field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType

from outbox.errors import InvalidField
from outbox.versions import AUTO, Auto

NAME = re.compile(r"[A-Za-z0-9._-]+")
MAX_NAME = 255
# (topic, key, seq) is a unique index, and a btree entry ends at 2,704 bytes.
MAX_KEY = 1024
MAX_SEQ = 2**63 - 1

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def text(field: str, value: object, limit: int = MAX_NAME) -> str:
    """A text that PostgreSQL, Redis and every client can hold: not empty, no NUL, UTF-8."""
    if not isinstance(value, str):
        raise InvalidField(field, f"must be a str, not {type(value).__name__}")
    if not value:
        raise InvalidField(field, "must not be empty")
    if "\0" in value:
        raise InvalidField(field, "must not contain a NUL character")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as exc:
        raise InvalidField(field, f"is not valid Unicode: {exc.reason}") from exc
    if size > limit:
        raise InvalidField(field, f"is {size} bytes long, the limit is {limit}")
    return value


def name(field: str, value: object) -> str:
    """A topic's or outbox's name, so plain that no Redis key of ours can collide with it."""
    value = text(field, value)
    if not NAME.fullmatch(value):
        raise InvalidField(field, f"{value!r} may only hold letters, digits, '.', '_' and '-'")
    return value


def seq(value: object) -> int | Auto | None:
    if value is None or value is AUTO:
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidField("seq", f"must be an int, AUTO or None, not {value!r}")
    if not 0 <= value <= MAX_SEQ:
        raise InvalidField("seq", f"{value} is not between 0 and {MAX_SEQ}")
    return value


def headers(value: object) -> Mapping[str, str]:
    if not value:
        return NO_HEADERS
    if not isinstance(value, Mapping):
        raise InvalidField("headers", f"must be a mapping, not {type(value).__name__}")
    for header, content in value.items():
        text("headers", header)
        if not isinstance(content, str):
            kind = type(content).__name__
            raise InvalidField(f"headers[{header!r}]", f"must be a str, not {kind}")
        if content:
            text(f"headers[{header!r}]", content, limit=64 * 1024)
    return MappingProxyType(dict(value))


def moment(field: str, value: object) -> datetime:
    """An aware time, as UTC. Naive times are refused: nobody can tell what they mean."""
    if not isinstance(value, datetime):
        raise InvalidField(field, f"must be a datetime, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise InvalidField(field, f"{value} has no time zone: use datetime.now(UTC)")
    return value.astimezone(UTC)
